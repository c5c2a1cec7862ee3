"""The page of a visitor's own table in a real browser: what is drawn, and one clear line for every bad file."""

import numpy as np
import pytest

import nvdp.loading

ROWS = [("oak", 10, 21.5), ("oak", 200, 40), ("oak", 400, 71), ("oak", 650, 88), ("ash", 50, 30), ("ash", 300, 55.5)]
TABLE = "tree,day,size\n" + "".join(f"{tree},{day},{size}\n" for tree, day, size in ROWS)


STARTED = "() => document.querySelector('#data-expects').textContent"


def choose(page, text, name="trees.csv"):
    body = text if isinstance(text, bytes) else text.encode()
    page.set_input_files("#data-file", {"name": name, "mimeType": "text/csv", "buffer": body})


def drawn(page):
    page.wait_for_selector("#data-plot path.mean[d]", state="attached")
    return page.get_attribute("#data-plot path.mean", "d")


@pytest.fixture
def page(visit):
    page = visit("#data")
    page.wait_for_function(STARTED)
    return page


def test_the_points_of_a_task_are_predicted_as_the_fitted_model_does(page, runs):
    with page.expect_response("**/api/adapt") as waited:
        choose(page, TABLE)
    drawn(page)
    answer, asked = waited.value.json(), waited.value.request.post_data_json
    assert asked["x"] == [[10], [200], [400]]  # the first three of the oak
    predictor = nvdp.load(runs[-1])
    x, y, query = (np.array(asked[name], dtype=float) for name in ("x", "y", "query"))
    expected = predictor.adapt(x, y).predict(query)
    np.testing.assert_allclose(answer["mean"], expected.mean, atol=1e-3)
    np.testing.assert_allclose(answer["std"], expected.std, atol=1e-3)
    assert page.locator("#data-plot .hidden-point").count() == 1
    assert "of the 1 point it has not seen" in page.text_content("#data-note")


def test_another_task_and_more_points_give_another_picture(page):
    choose(page, TABLE)
    before = drawn(page)
    page.locator("#data-given").fill("4")
    page.wait_for_function("() => document.getElementById('data-note').textContent.startsWith('It has seen all')")
    assert page.get_attribute("#data-plot path.mean", "d") != before
    page.select_option("#data-task", label="ash (2 points)")
    page.wait_for_function("() => document.querySelectorAll('#data-plot .dot').length === 2")


def test_columns_of_other_names_are_chosen_and_a_table_without_tasks_is_one(page):
    choose(page, "age;height;note\n1,5;2,25;a\n3;4;b\n")
    page.wait_for_function("() => document.querySelector('.trouble').textContent.includes('Choose the one for: Task')")
    assert page.locator("#data-view").is_hidden()  # nothing is guessed
    for place, column in enumerate(("", "age", "height")):
        page.select_option(f"#data-columns select >> nth={place}", column)
    drawn(page)
    assert page.text_content("#data-task option") == "all rows (2 points)"
    page.select_option("#data-columns select >> nth=1", "height")
    page.wait_for_function("() => document.querySelector('.trouble').textContent.includes('chosen twice')")
    page.select_option("#data-columns select >> nth=1", "age")
    page.wait_for_selector("#data-plot")
    with page.expect_request(lambda request: '"x":[[1.5]],"y":[[2.25]]' in (request.post_data or "")):
        page.locator("#data-given").fill("1")


DROP = """code => {
  const files = new DataTransfer();
  files.items.add(eval(code));
  const event = new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true });
  document.querySelector('.drop').dispatchEvent(event);
}"""


def test_a_file_is_dropped(page):
    page.evaluate(DROP, f"new File([{TABLE!r}], 'dropped.csv')")
    drawn(page)
    assert page.text_content("#data-name") == "dropped.csv: 6 rows"


BAD = [
    ("", "trees.csv is empty; expected a line of column names and rows."),
    ("tree,day,size\n", "trees.csv has 0 rows"),
    ("tree\noak\n", "trees.csv has 1 column; expected at least two"),
    ("tree,day,day\n1,2,3\n", "trees.csv has two columns named 'day'."),
    ("tree,day,size\noak,1\n", "line 2 has 2 cells; expected 3."),
    ('tree,day,size\n"oak,1,2\n', "a quotation mark that opens in line 2 is not closed"),
    ("tree,day,size\noak,soon,2\n", "column 'day' holds 'soon' in line 2; expected a number."),
    ("tree,day,size\n\noak,1,inf\n", "column 'size' holds 'inf' in line 3; expected a number."),
    ("tree,day,size\noak,,2\n,1,2\n", "each of its 2 rows has an empty cell."),
    ("tree,day,size\noak,1e9,2\n", "x[0][0] is 1e+09; this model takes numbers from"),
    (b"\x89PNG\r\n\x1a\n\0\0", "trees.csv is not a text file in UTF-8; expected a CSV."),
    ("a," * 200 + "b\n", "trees.csv has 201 columns; expected at most 100."),
]


def test_a_bad_file_is_told_in_one_line(browser, address):
    with browser.new_context() as context:  # a refusal of the server is an error in the console
        page = context.new_page()
        page.goto(f"{address}/#data")
        page.wait_for_function(STARTED)
        for text, reason in BAD:
            choose(page, TABLE)
            page.wait_for_selector(".trouble", state="hidden")
            choose(page, text)
            page.wait_for_selector(".trouble:not([hidden])")
            assert reason in page.text_content(".trouble")


def test_a_long_file_is_refused_before_it_is_read(page):
    long = "new File([{}], 'long.csv')"
    for body, reason in (
        ("'a,b\\n' + '1,2\\n'.repeat(100_001)", "long.csv has more than 100000 rows"),
        ("new Uint8Array(9 * 2 ** 20)", "long.csv holds 9.0 MB; expected at most 8 MB."),
    ):
        page.evaluate(DROP, long.format(body))
        page.wait_for_function("reason => document.querySelector('.trouble').textContent.includes(reason)", arg=reason)


def test_quotes_empty_cells_and_a_byte_order_mark_are_read_as_nvdp_predict_reads_them(page):
    choose(page, '\ufefftree,day,size\r\n"oak, ""old""",10,21\r\n"oak, ""old""",NA,3\r\n"oak, ""old""",20, 22 \r\n')
    drawn(page)
    assert page.text_content("#data-task option") == 'oak, "old" (2 points)'
    page.wait_for_function("() => document.getElementById('data-note').textContent.includes('Left out 1 row with')")


def test_without_a_fitted_model_the_page_says_how_to_make_one(browser, address):
    with browser.new_context() as context:
        page = context.new_page()
        page.route("**/api/models", lambda route: route.fulfill(json=[]))
        page.goto(f"{address}/#data")
        page.wait_for_selector("#data-how")
        assert "nvdp fit growth.csv" in page.text_content("#data-how")
        assert page.locator("nav a:visible").all_text_contents() == ["Your data", "API"]


def test_a_sample_table_is_drawn_and_the_curve_is_downloaded(page):
    page.click("#data-sample")
    drawn(page)
    assert page.text_content("#data-name") == "sample.csv: 24 rows"
    with page.expect_download() as waited:
        page.click("#data-download")
    lines = waited.value.path().read_text().splitlines()
    assert lines[0] == "day,mean,std,q05,q95"
    assert len(lines) == 162


def test_outputs_far_from_training_are_told(page):
    choose(page, "tree,day,size\noak,10,5000\noak,20,5001\n")
    told = "y goes from 5000 to 5001"
    page.wait_for_function("told => document.getElementById('data-note').textContent.includes(told)", arg=told)
