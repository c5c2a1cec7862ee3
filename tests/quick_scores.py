"""Scoring a run in a second, and a queue without processes, for tests whose subject is what surrounds both."""

from functools import partial

from nvdp.evaluation.joint import joint_scores, own_contexts
from nvdp.experiments.queue import run_job


def score_few(patch):
    """Let runs be scored on few functions and targets; tests/evaluation/test_joint.py is about these scores."""
    patch.setattr("nvdp.evaluation.run.joint_scores", partial(joint_scores, samples=4, targets=4))
    patch.setattr("nvdp.evaluation.run.own_contexts", partial(own_contexts, samples=4))
    patch.setattr("nvdp.evaluation.run.FED_BACK", 2)


def in_this_process(title, plan, pending, runs, jobs):
    """An executor."""
    for job in pending:
        run_job(job)
