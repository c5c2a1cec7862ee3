"""The pages of functions and images in a real browser, as a visitor would use them."""


def opened(page):
    """Wait for both predictions of the page of functions."""
    page.wait_for_selector(".a path.mean[d]", state="attached")
    page.wait_for_selector(".b path.mean[d]", state="attached")
    return page


def mean(page, side="a"):
    return page.get_attribute(f".{side} path.mean", "d")


def changed(page, before, side="a"):
    """Wait until the curve is another one."""
    page.wait_for_function(
        "([side, before]) => document.querySelector(`.${side} path.mean`).getAttribute('d') !== before",
        arg=[side, before],
    )
    return mean(page, side)


def count(page):
    return page.locator(".a .point").count()


def centre(page, selector):
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_click_adds_a_point_and_both_predictions_follow(visit):
    page = opened(visit())
    before, curves = count(page), [mean(page, side) for side in "ab"]
    page.locator(".a .plot").click(position={"x": 300, "y": 60})
    for side, curve in zip("ab", curves, strict=True):
        changed(page, curve, side)
    assert count(page) == page.locator(".b .point").count() == before + 1


def test_dragging_moves_the_point_and_the_picture_before_it_is_let_go(visit):
    page = opened(visit())
    before, points, place = mean(page), count(page), centre(page, ".a .point >> nth=1")
    page.mouse.move(*place)
    page.mouse.down()
    page.mouse.move(place[0] + 30, place[1] - 60, steps=4)
    held = changed(page, before)
    page.mouse.move(place[0] + 30, place[1] - 110, steps=4)
    changed(page, held)
    page.mouse.up()
    x, y = centre(page, ".a .point >> nth=1")
    assert abs(x - place[0] - 30) < 3
    assert abs(y - place[1] + 110) < 3
    assert count(page) == points  # the end of a drag is no click
    page.wait_for_function("() => performance.getEntriesByName('pointer to picture').length > 0")


def test_a_double_click_removes_a_point_and_on_empty_ground_removes_none(visit):
    page = opened(visit())
    points = count(page)
    page.mouse.dblclick(*centre(page, ".a .point >> nth=0"))
    page.wait_for_function("n => document.querySelectorAll('.a .point').length === n", arg=points - 1)
    page.locator(".a .plot").dblclick(position={"x": 300, "y": 60})
    assert count(page) == points


def test_another_model_gives_another_picture_and_rates_are_shown_where_there_are_any(visit):
    page = opened(visit())
    assert page.locator(".a .rates figure").count() == 3
    assert page.locator(".b .rates").count() == 0
    before = mean(page)
    page.select_option(".a select", "small-cnp")
    changed(page, before)
    page.wait_for_function("() => document.querySelector('.a').textContent.includes('no dropout rates')")


def test_heat_maps_react_to_the_context(visit):
    page = opened(visit())
    read = "() => [...document.querySelectorAll('.a .rates canvas')].map(c => c.toDataURL()).join()"
    page.wait_for_selector(".a .rates figure")
    before, curve = page.evaluate(read), mean(page)
    page.click("#clear")
    changed(page, curve)
    assert page.evaluate(read) != before


def test_the_slider_sets_the_number_of_functions_and_a_suggestion_is_marked(visit):
    page = opened(visit())
    page.locator("#samples").fill("3")
    for side in "ab":
        page.wait_for_function("s => document.querySelectorAll(`.${s} .sample`).length === 3", arg=side)
    page.click("#suggest")
    page.wait_for_selector(".a .layer-next line", state="attached")
    assert page.locator(".b .layer-next text").text_content().startswith("x = ")


def test_points_are_added_moved_and_removed_by_keys(visit):
    page = opened(visit())
    points = count(page)
    page.locator(".a .plot").focus()
    page.keyboard.press("Enter")
    assert count(page) == points + 1
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label == "Point at x 0.00, y 0.00"
    before = mean(page)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowRight")
    changed(page, before)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Point at x 0.40, y 0.10"
    page.keyboard.press("Delete")
    assert count(page) == points


def test_pixels_are_revealed_drawn_and_suggested(visit):
    page = visit("#images")
    page.wait_for_function("() => document.getElementById('deviations').textContent.includes('to')")
    seen = "parseInt(document.getElementById('revealed').textContent)"
    completion = "document.getElementById('completed').toDataURL()"
    assert page.evaluate(seen) == 150  # a digit that one recognises
    before = page.evaluate(completion)
    x, y = centre(page, "#given")
    page.mouse.move(x - 60, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=3)
    page.mouse.up()
    swept = page.evaluate(seen)
    assert swept > 150
    page.wait_for_function(f"before => {completion} !== before", arg=before)
    page.click("#reveal-next")
    page.wait_for_function(f"n => {seen} === n", arg=swept + 1)
    page.click("#hide-all")
    page.locator("[name=pen][value=ink]").check(force=True)
    assert page.locator("#reveal-next").is_disabled()
    page.mouse.click(x, y)
    page.wait_for_function(f"() => {seen} === 1")
    page.locator("#given").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    page.wait_for_function(f"() => {seen} === 2")


def test_the_api_can_be_tried_on_its_page(visit):
    page = visit("docs")
    page.wait_for_selector(".route")
    page.get_by_role("button", name="Try it").nth(1).click()
    page.wait_for_function(
        "() => [...document.querySelectorAll('pre')].some(each => each.textContent.includes('\"mean\"'))"
    )


def test_a_refusal_is_told_on_the_page(browser, address):
    with browser.new_context() as context:
        page = context.new_page()
        page.route("**/api/adapt", lambda route: route.fulfill(status=503, json={"detail": "162 requests are waiting"}))
        page.goto(address)
        page.wait_for_function("() => document.querySelector('.trouble').textContent.includes('162 requests')")


def test_a_tap_adds_a_point_on_a_phone(visit):
    page = opened(visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True))
    points = count(page)
    page.locator(".a .plot").scroll_into_view_if_needed()
    page.locator(".a .plot").tap(position={"x": 150, "y": 40})
    assert count(page) == points + 1
