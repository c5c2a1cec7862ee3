"""The page of characters in a real browser: drawings become pictures as the model knows them, and are named."""

import os
import re

import numpy as np
import pytest

from nvdp.data.public.fetch import locate
from nvdp.data.public.omniglot import OMNIGLOT, numbered_from_npz


@pytest.fixture
def page(visit):
    page = visit("#characters")
    answered(page)
    return page


def answered(page):
    page.wait_for_function("() => document.querySelector('.verdict').textContent.includes('nats')")


IS_LIKELIEST = """sign => document.querySelector('.chances li.likeliest')
  ?.getAttribute('aria-label').split(' ')[1].startsWith(String(sign))"""


def shares(page):
    texts = page.locator(".chances output").all_text_contents()
    return [int(re.search(r"\d+", text)[0]) if "%" in text else None for text in texts]


def draw(page, selector, *strokes, at=(0.0, 0.0), size=1.0):
    """Strokes of points in a unit square, on a part of the square that begins at `at`."""
    canvas = page.locator(selector)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    for stroke in strokes:
        places = [
            (box["x"] + box["width"] * (at[0] + size * x), box["y"] + box["height"] * (at[1] + size * y))
            for x, y in stroke
        ]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=2)
        page.mouse.up()


SIGNS = [
    [[(0.2, 0.2), (0.8, 0.2)], [(0.5, 0.2), (0.5, 0.8)]],
    [[(0.2, 0.2), (0.8, 0.8)], [(0.8, 0.2), (0.2, 0.8)]],
    [[(0.2, 0.2), (0.2, 0.8), (0.8, 0.8)]],
    [[(0.2, 0.5), (0.5, 0.2), (0.8, 0.5), (0.5, 0.8), (0.2, 0.5)]],
    [[(0.2, 0.3), (0.8, 0.3)], [(0.2, 0.7), (0.8, 0.7)]],
]


TICKS_DIFFER = """() => {
  const ticks = [...document.querySelectorAll('.chances li line')].slice(0, 24);
  return new Set(ticks.map(tick => tick.getAttribute('x1'))).size > 1;
}"""


def test_five_drawn_signs_and_a_query_that_repeats_one_of_them(page):
    page.select_option("#character-model", "signs")
    page.click("#clear-signs")
    page.wait_for_function("() => document.querySelector('.verdict').textContent === 'Draw at least 2 signs.'")
    page.click("#query-clear")
    for index, strokes in enumerate(SIGNS):
        draw(page, f".signs figure:nth-child({index + 1}) canvas", *strokes)
    page.wait_for_function("() => document.querySelector('.verdict').textContent.startsWith('Now draw')")
    # The same strokes elsewhere and smaller are the same picture; of prototypes the nearest is at no distance.
    draw(page, "#query", *SIGNS[3], at=(0.1, 0.2), size=0.7)
    page.wait_for_function(IS_LIKELIEST, arg=4)  # earlier strokes of the query were answered, too
    assert 95 <= sum(shares(page)) <= 105


def test_probabilities_move_while_the_query_is_drawn_and_show_the_spread(page):
    with page.expect_response("**/api/classify"):
        page.select_option("#character-model", "signs-nvdp")
    page.wait_for_function("() => document.querySelector('.verdict').textContent.includes('disagree')")
    page.wait_for_function(TICKS_DIFFER)  # until then, those of the shipped model may be there, which is almost certain
    seen = "document.getElementById('query-seen').toDataURL()"
    answers = []
    page.on("response", lambda response: answers.append(response.status) if "classify" in response.url else None)
    before, ticks = page.evaluate(seen), page.locator(".chances li line")
    assert ticks.count() == 5 * 24
    x, y = (page.locator("#query").bounding_box()[key] for key in "xy")
    page.mouse.move(x + 60, y + 60)
    page.mouse.down()
    for step in range(1, 6):
        with page.expect_response("**/api/classify"):
            page.mouse.move(x + 60, y + 60 + 30 * step)
    assert page.evaluate(seen) != before
    page.mouse.up()
    assert set(answers) == {200}


def test_examples_of_three_alphabets_fill_the_squares_and_another_hand_writes_the_query(page):
    pads = "[...document.querySelectorAll('.signs canvas, #query')].map(canvas => canvas.toDataURL())"
    kinds = [page.evaluate(pads)]
    for name in ("Greek", "Runes"):
        page.get_by_text(name, exact=True).click()
        answered(page)
        kinds.append(page.evaluate(pads))
    assert len({picture for kind in kinds for picture in kind}) == 3 * 6
    page.get_by_label("Clear sign 2").click()
    page.wait_for_function("() => document.querySelectorAll('.chances .absent').length === 1")
    page.get_by_label("Example of sign 2").click()
    page.wait_for_function("() => document.querySelectorAll('.chances .absent').length === 0")
    page.click("#query-example")
    page.wait_for_function(f"before => {pads}[5] !== before", arg=kinds[-1][5])


def test_a_sign_is_drawn_by_keys_alone(page):
    page.click("#query-clear")
    page.locator("#query").focus()
    page.keyboard.press("Space")
    for key in ("Shift+ArrowRight", "Shift+ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    page.keyboard.press("Space")
    page.keyboard.press("ArrowUp")  # with the pen lifted nothing is drawn
    answered(page)
    drawn = page.evaluate("document.getElementById('query-seen').toDataURL()")
    page.keyboard.press("Delete")
    page.wait_for_function("() => document.querySelector('.verdict').textContent.startsWith('Now draw')")
    assert page.evaluate("document.getElementById('query-seen').toDataURL()") != drawn


@pytest.mark.skipif(not os.environ.get("NVDP_DATA"), reason="NVDP_DATA is not set")
def test_pictures_of_drawings_look_like_omniglot(page):
    """Ink on paper in the same amounts, in the same shades, in the same place."""
    pictures = page.evaluate(
        """async () => {
            const { ALPHABETS, written } = await import('/alphabets.js');
            const { picture } = await import('/strokes.js');
            return ALPHABETS.flatMap(each => [0, 1, 2, 3, 4].map(sign => picture(written(each, sign, 1), 28)));
        }"""
    )
    drawn = np.array(pictures).reshape(-1, 28, 28)
    known = numbered_from_npz(locate(OMNIGLOT).paths[0])[0][:4000, ..., 0] / 255
    assert drawn.shape == (15, 28, 28)
    for fact, tolerance in (
        (lambda images: np.mean(images[images > 0.02]), 0.1),  # the shades of the ink
        (lambda images: np.mean(images[images > 0.02] > 0.9), 0.12),
        (lambda images: np.mean((images > 0.3).any(1).sum(-1)) / 28, 0.15),  # columns with ink
        (lambda images: (images.mean(0).sum(0) * np.arange(28)).sum() / images.mean(0).sum() / 28, 0.05),  # the middle
    ):
        assert abs(fact(drawn) - fact(known)) < tolerance, (fact(drawn), fact(known))


def test_a_pretrained_model_is_shown_first(browser, address):
    with browser.new_context() as context:
        page = context.new_page()
        entries = context.request.get(f"{address}/api/models").json()
        for entry in entries:
            entry["pretrained"] = entry["name"] == "signs-nvdp"
        page.route("**/api/models", lambda route: route.fulfill(json=entries))
        page.goto(f"{address}/#characters")
        answered(page)
        assert page.locator("#character-model").input_value() == "signs-nvdp"
