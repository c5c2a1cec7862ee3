/* The loops of nvdp/nn/fused.py, each in one pass over memory. Its notation is used here; float32, rows contiguous.

   nvdp/nn/kernels.py compiles this file, nvdp/nn/compiled.py calls it. Work is cut in the same pieces for any number of threads, so
   that results do not depend on it. */

#include <math.h>
#include <string.h>

/* BLOCK is the number of rows of a weight matrix that one thread works on at a time: they stay in its cache. It is
   given on the compiler's command line. */

/* M and V of every task. */
void nvdp_weights(long tasks, long k, long d, const float *theta, const float *rows, const float *columns,
                  const float *layer, long stride, float floor, float *mean, float *variance, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long t = 0; t < tasks; t++) {
        const float *b = columns + t * stride;
        for (long i = 0; i < k; i++) {
            const float minus_su = -(1 - 2 * floor) * layer[t * stride] * rows[t * stride + i], most = 1 - floor;
            const float *theta_row = theta + i * d;
            float *m = mean + (t * k + i) * d, *v = variance + (t * k + i) * d;
#pragma omp simd
            for (long j = 0; j < d; j++) {
                const float kept = (minus_su * b[j] + most) * theta_row[j];
                m[j] = kept;
                v[j] = kept * (theta_row[j] - kept);
            }
        }
    }
}

/* B = AM + σz in the place of AM, and z/σ in that of A²V. */
void nvdp_outputs(long tasks, long points, long d, const float *bias, const float *columns, const float *layer,
                  long stride, float floor, float least, const float *noise, float *mean, float *variance,
                  float *work, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long t = 0; t < tasks; t++) {
        float *bias_mean = work + 2 * t * d, *bias_variance = bias_mean + d;
        const float *b = columns + t * stride;
        const float minus_su = -(1 - 2 * floor) * layer[t * stride];
        for (long j = 0; j < d; j++) {
            bias_mean[j] = (minus_su * b[j] + 1 - floor) * bias[j];
            bias_variance[j] = bias_mean[j] * (bias[j] - bias_mean[j]) + least;
        }
        for (long i = 0; i < points; i++) {
            const long first = (t * points + i) * d;
            float *m = mean + first, *v = variance + first;
            const float *z = noise + first;
#pragma omp simd
            for (long j = 0; j < d; j++) {
                const float std = sqrtf(v[j] + bias_variance[j]);
                m[j] += bias_mean[j] + std * z[j];
                v[j] = z[j] / std;
            }
        }
    }
}

/* H = G z/σ, and the sums of G and of H over points. */
void nvdp_noise_gradient(long tasks, long points, long d, const float *gradient, const float *noise_over_std, float *h,
                         float *sums, float *h_sums, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long t = 0; t < tasks; t++) {
        float *sum = sums + t * d, *h_sum = h_sums + t * d;
        memset(sum, 0, d * sizeof(float));
        memset(h_sum, 0, d * sizeof(float));
        for (long i = 0; i < points; i++) {
            const long first = (t * points + i) * d;
            const float *g = gradient + first, *z = noise_over_std + first;
            float *out = h + first;
#pragma omp simd
            for (long j = 0; j < d; j++) {
                const float product = g[j] * z[j];
                out[j] = product;
                sum[j] += g[j];
                h_sum[j] += product;
            }
        }
    }
}

/* One row of ∂M and S: adds to ∂θ and to ∂b, returns the row's ∂u; both without the factor s. */
static float rate_gradients(long d, float minus_su, float floor, const float *theta, const float *b,
                            const float *mean_gradient, const float *h_sums, float *theta_gradient,
                            float *b_gradient) {
    const float most = 1 - floor;
    float of_u = 0;
#pragma omp simd reduction(+ : of_u)
    for (long j = 0; j < d; j++) {
        const float keep = minus_su * b[j] + most, dropped = theta[j] - keep * theta[j];
        const float w = mean_gradient[j] + dropped * h_sums[j];
        const float of_rate = -theta[j] * (w - 0.5f * theta[j] * h_sums[j]);
        theta_gradient[j] += w * keep;
        b_gradient[j] -= of_rate * minus_su;
        of_u += of_rate * b[j];
    }
    return of_u;
}

/* ∂θ, the gradient of the biases, and those of the experts, from ∂M, S and the sums of G and H over points.
   `work` holds blocks × tasks × d numbers. */
void nvdp_gradients(long tasks, long k, long d, const float *theta, const float *bias, const float *rows,
                    const float *columns, const float *layer, long stride, float floor, const float *mean_gradient,
                    const float *h_sums, const float *bias_mean_gradient, const float *bias_h_sums,
                    float *theta_gradient, float *bias_gradient, float *rows_gradient, float *columns_gradient,
                    float *layer_gradient, float *work, int threads) {
    const long blocks = (k + BLOCK - 1) / BLOCK;
    const float span = 1 - 2 * floor;
    memset(work, 0, blocks * tasks * d * sizeof(float));
    memset(bias_gradient, 0, d * sizeof(float));
#pragma omp parallel for num_threads(threads)
    for (long block = 0; block < blocks; block++) {
        const long begin = block * BLOCK, end = begin + BLOCK < k ? begin + BLOCK : k;
        memset(theta_gradient + begin * d, 0, (end - begin) * d * sizeof(float));
        for (long t = 0; t < tasks; t++)
            for (long i = begin; i < end; i++)
                rows_gradient[t * k + i] = rate_gradients(
                    d, -span * layer[t * stride] * rows[t * stride + i], floor, theta + i * d, columns + t * stride,
                    mean_gradient + (t * k + i) * d, h_sums + (t * k + i) * d, theta_gradient + i * d,
                    work + (block * tasks + t) * d);
    }
    for (long t = 0; t < tasks; t++) { /* a bias is a weight whose row expert is 1 */
        float *of_b = columns_gradient + t * d;
        memset(of_b, 0, d * sizeof(float));
        double of_layer = rate_gradients(d, -span * layer[t * stride], floor, bias, columns + t * stride,
                                         bias_mean_gradient + t * d, bias_h_sums + t * d, bias_gradient, of_b);
        for (long block = 0; block < blocks; block++)
            for (long j = 0; j < d; j++) of_b[j] += work[(block * tasks + t) * d + j];
        for (long i = 0; i < k; i++) {
            of_layer += rows_gradient[t * k + i] * rows[t * stride + i];
            rows_gradient[t * k + i] *= span * layer[t * stride];
        }
        layer_gradient[t] = span * (float)of_layer;
    }
}

/* Φ = A √(P(1−P)) θ with rates of each point; the last weight is the bias, whose input and row expert are 1. θ has a
   row for each of the `outputs`, as has Φ for each task. */
void nvdp_basis(long tasks, long points, long k, long outputs, const float *inputs, const float *rows,
                const float *columns, const float *theta, float floor, float least, float *basis, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long t = 0; t < tasks; t++)
        for (long o = 0; o < outputs; o++) {
            const float c = (1 - 2 * floor) * columns[t * outputs + o], *theta_row = theta + o * (k + 1);
            const float of_bias = c + floor, bias = sqrtf(of_bias - of_bias * of_bias + least) * theta_row[k];
            for (long i = 0; i < points; i++) {
                const float *a = inputs + (t * points + i) * k, *r = rows + (t * points + i) * k;
                float *out = basis + ((t * outputs + o) * points + i) * (k + 1);
#pragma omp simd
                for (long j = 0; j < k; j++) {
                    const float rate = c * r[j] + floor;
                    out[j] = a[j] * sqrtf(rate - rate * rate + least) * theta_row[j];
                }
                out[k] = bias;
            }
        }
}

/* The gradients of what Φ is made of, from ∂Φ; ∂θ is left for each task. */
void nvdp_basis_gradients(long tasks, long points, long k, long outputs, const float *inputs, const float *rows,
                          const float *columns, const float *theta, float floor, float least, const float *gradient,
                          float *inputs_gradient, float *rows_gradient, float *columns_gradient, float *theta_gradient,
                          int threads) {
    const float span = 1 - 2 * floor;
    memset(inputs_gradient, 0, tasks * points * k * sizeof(float));
    memset(rows_gradient, 0, tasks * points * k * sizeof(float));
    memset(theta_gradient, 0, tasks * outputs * (k + 1) * sizeof(float));
#pragma omp parallel for num_threads(threads)
    for (long t = 0; t < tasks; t++)
        for (long o = 0; o < outputs; o++) {
            const float c = span * columns[t * outputs + o], *theta_row = theta + o * (k + 1);
            float *of_theta = theta_gradient + (t * outputs + o) * (k + 1), of_biases = 0;
            double of_column = 0;
            for (long i = 0; i < points; i++) {
                const float *a = inputs + (t * points + i) * k, *r = rows + (t * points + i) * k;
                const float *g = gradient + ((t * outputs + o) * points + i) * (k + 1);
                float *of_a = inputs_gradient + (t * points + i) * k, *of_r = rows_gradient + (t * points + i) * k;
                float sum = 0;
#pragma omp simd reduction(+ : sum)
                for (long j = 0; j < k; j++) {
                    const float rate = c * r[j] + floor, std = sqrtf(rate - rate * rate + least);
                    const float g_std = g[j] * std, of_rate = g[j] * a[j] * theta_row[j] * (0.5f - rate) / std;
                    of_a[j] += g_std * theta_row[j];
                    of_theta[j] += g_std * a[j];
                    of_r[j] += of_rate * c;
                    sum += of_rate * r[j];
                }
                of_column += sum;
                of_biases += g[k];
            }
            const float of_bias = c + floor, std = sqrtf(of_bias - of_bias * of_bias + least);
            of_theta[k] = of_biases * std;
            of_column += of_biases * theta_row[k] * (0.5f - of_bias) / std;
            columns_gradient[t * outputs + o] = span * (float)of_column;
        }
}

/* The columns of one layer of one task, of both posteriors: experts, gradients, and products of variances. */
struct side {
    const float *b;
    float *gradient, *variances;
};

/* One row of the grid: returns the sum of e (1 − 2P̂), adds to the gradients by b, and sets the row's by u. */
static float kl_row(long d, float su_q, float su_p, float floor, struct side q, struct side p, float *of_u_q,
                    float *of_u_p) {
    float sum = 0, sum_q = 0, sum_p = 0;
#pragma omp simd reduction(+ : sum, sum_q, sum_p)
    for (long j = 0; j < d; j++) {
        const float rate = su_q * q.b[j] + floor, rate_hat = su_p * p.b[j] + floor;
        const float v = rate - rate * rate, v_hat = rate_hat - rate_hat * rate_hat;
        const float inverse = 1 / (v * v_hat), over_v = inverse * v_hat, over_v_hat = inverse * v;
        const float e = (rate - rate_hat) * over_v_hat;
        const float of_rate = e * over_v * (1 - rate - rate_hat + 2 * rate * rate_hat);
        const float of_rate_hat = 2 * e - e * over_v_hat;
        sum += e * (1 - 2 * rate_hat);
        q.variances[j] *= v;
        p.variances[j] *= v_hat;
        q.gradient[j] += of_rate * su_q;
        p.gradient[j] += of_rate_hat * su_p;
        sum_q += of_rate * q.b[j];
        sum_p += of_rate_hat * p.b[j];
    }
    *of_u_q = sum_q;
    *of_u_p = sum_p;
    return sum;
}

/* Σ log of the quotients of two rows of products, which begin again at 1. */
static double logs(long d, float *variances, float *variances_hat) {
    float sum = 0;
    for (long j = 0; j < d; j++) {
        sum += logf(variances[j] / variances_hat[j]);
        variances[j] = variances_hat[j] = 1;
    }
    return sum;
}

/* KL of every task over all layers, and its gradients by the experts of both sides. A logarithm is taken of the
   products of `together` variances. `work` holds 4 × the widest layer for each task. */
void nvdp_kl(long tasks, long layers, const long *shapes, const float *q, long q_stride, const float *p, long p_stride,
             long experts, float floor, long together, float *kl, float *q_gradient, float *p_gradient, float *work,
             long widest, int threads) {
    const float span = 1 - 2 * floor;
#pragma omp parallel for num_threads(threads)
    for (long t = 0; t < tasks; t++) {
        const float *rows_q = q + t * q_stride, *rows_p = p + t * p_stride;
        float *of_q = q_gradient + t * experts, *of_p = p_gradient + t * experts;
        double twice_kl = 0;
        for (long layer = 0; layer < layers; layer++) {
            const long k = shapes[2 * layer], d = shapes[2 * layer + 1], all = k + d + 1;
            const float layer_q = rows_q[k + d], layer_p = rows_p[k + d];
            float *of_b = work + 4 * t * widest, *variances = of_b + 2 * widest;
            const struct side own = {rows_q + k, of_b, variances};
            const struct side other = {rows_p + k, of_b + widest, variances + widest};
            double of_layer_q = 0, of_layer_p = 0;
            memset(of_b, 0, 2 * widest * sizeof(float));
            for (long j = 0; j < 2 * widest; j++) variances[j] = 1;
            for (long i = 0; i <= k; i++) { /* the last row is the biases: their row expert is 1 */
                const float a_q = i < k ? rows_q[i] : 1, a_p = i < k ? rows_p[i] : 1;
                float of_u_q, of_u_p;
                twice_kl += kl_row(d, span * layer_q * a_q, span * layer_p * a_p, floor, own, other, &of_u_q, &of_u_p);
                if ((i + 1) % together == 0 || i == k) twice_kl -= logs(d, own.variances, other.variances);
                of_layer_q += of_u_q * a_q;
                of_layer_p += of_u_p * a_p;
                if (i < k) {
                    of_q[i] = 0.5f * span * layer_q * of_u_q;
                    of_p[i] = 0.5f * span * layer_p * of_u_p;
                }
            }
            for (long j = 0; j < d; j++) {
                of_q[k + j] = 0.5f * own.gradient[j];
                of_p[k + j] = 0.5f * other.gradient[j];
            }
            of_q[k + d] = 0.5f * span * (float)of_layer_q;
            of_p[k + d] = 0.5f * span * (float)of_layer_p;
            rows_q += all, rows_p += all, of_q += all, of_p += all;
        }
        kl[t] = twice_kl < 0 ? 0 : (float)(0.5 * twice_kl); /* rounding may leave equal posteriors just below zero */
    }
}
