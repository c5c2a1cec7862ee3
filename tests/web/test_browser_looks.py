"""What every page owes its visitors: room on a phone, contrast in light and dark, colours apart, keys that reach all.

Screenshots are left in the folder that NVDP_SCREENSHOTS names.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from test_browser_data import STARTED, TABLE, choose

DESKTOP, PHONE = {"width": 1280, "height": 960}, {"width": 390, "height": 844}
PAGES = ["functions", "images", "characters", "data", "docs"]
READY = {
    "functions": "document.querySelector('.b path.mean[d]') && document.querySelector('.a path.mean[d]')",
    "images": "document.getElementById('deviations').textContent.includes('to')",
    "characters": "document.querySelector('.verdict').textContent.includes('nats')",
    "data": "document.querySelector('#data-plot path.mean[d]')",
    "docs": "document.querySelector('.route')",
}

# Text that is less than 4.5 times as light or dark as its ground (3 times if large), as the WCAG count it.
FAINT = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility()) continue;
    if (element.closest('legend, option, :disabled')) continue;
    const style = getComputedStyle(element);
    const colour = numbers(element instanceof SVGElement ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(colour), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) faint.push(`${node.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return faint;
}"""

# What can be reached by Tab, in the order of the page: of radio buttons only the chosen one.
FOCUSABLE = """() => [...document.querySelectorAll('a[href], button, select, input, textarea, summary, [tabindex]')]
  .filter((each) => each.checkVisibility() && !each.disabled && each.tabIndex >= 0)
  .filter((each) => each.type !== 'radio' || each.checked)
  .map((each) => ((each.dataset.order ??= String(Math.random())), each.dataset.order))"""
FOCUSED = """() => {
  const at = document.activeElement;
  const holders = [at, at.closest('fieldset, .drop')].filter(Boolean);
  const marked = at.matches('.point') || holders.some((each) => getComputedStyle(each).outlineStyle !== 'none');
  const name = at.getAttribute('aria-label') ?? (at.labels?.[0]?.textContent || at.textContent);
  return { order: at.dataset.order ?? null, marked, name: name.trim(), what: at.outerHTML.slice(0, 120) };
}"""


def opened(visit, name, **options):
    page = visit(name if name == "docs" else f"#{name}", **options)
    if name == "data":
        page.wait_for_function(STARTED)
        choose(page, TABLE)
    page.wait_for_function(f"() => {READY[name]}")
    return page


def photograph(page, name):
    folder = os.environ.get("NVDP_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_reached_by_keys_fits_a_phone_and_can_be_read(visit, name):
    page = opened(visit, name)
    check_tab_order(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # no colours half-way
        for device, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
            page.set_viewport_size(viewport)
            page.wait_for_timeout(200 if os.environ.get("NVDP_SCREENSHOTS") else 0)  # for what is drawn anew
            photograph(page, f"{name}-{device}-{scheme}")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            assert page.evaluate(FAINT) == []


def check_tab_order(page):
    """Tab reaches everything, in the order of the page, and shows and says where it is."""
    expected = page.evaluate(FOCUSABLE)
    page.locator("a.name").focus()  # a hash in the address would begin at its section
    reached = expected[:1]
    for _ in expected[1:]:
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        assert focused["marked"], focused
        assert focused["name"], focused
        reached.append(focused["order"])
    assert reached == expected


# Colours as people with one kind of cone missing see them: Machado, Oliveira, Fernandes (2009), severity 1.
CONES = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lab(hex_colour, cones):
    """CIE L*a*b* of an sRGB colour under D65, seen with these cones."""
    srgb = np.array([int(hex_colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(cones) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.array(to_xyz) @ seen / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_of_the_models_stay_apart_for_every_kind_of_eye(visit, scheme):
    page = visit(scheme=scheme)
    names = ["--a", "--b", "--next", "--ink", "--card"]
    read = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
    colours = {name: page.evaluate(read, name) for name in names}
    for kind, cones in CONES.items():
        seen = {name: lab(colour, cones) for name, colour in colours.items()}
        for one, other in [("--a", "--b"), ("--b", "--next"), *((each, "--card") for each in names[:4])]:
            assert np.linalg.norm(seen[one] - seen[other]) > 20, (kind, one, other)  # some ten just visible steps
