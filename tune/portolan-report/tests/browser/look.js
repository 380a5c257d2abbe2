(() => {
  const complaints = [];
  const root = document.documentElement;
  const named = (element) => `<${element.tagName.toLowerCase()} ${element.className?.baseVal ?? element.className}> ${(element.textContent || "").trim().slice(0, 60)}`;
  // Tables are looked at open; on paper the style has to open them.
  for (const box of document.querySelectorAll("details")) box.open = !matchMedia("print").matches;
  const wide = root.clientWidth;
  const shown = (element) => element.getClientRects().length > 0;
  if (root.scrollWidth > wide) complaints.push(`the page is ${root.scrollWidth} pixels wide`);
  for (const element of document.body.querySelectorAll("*")) {
    if (!shown(element) || element.closest(".sr, .scroll > *, .tip, .skip") || element.closest("svg svg, defs")) continue;
    const box = element.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1) && !element.closest("svg")) complaints.push(`stands out of the page: ${named(element)}`);
    const clips = getComputedStyle(element).overflowX === "hidden" && !element.closest("svg");
    if (clips && element.scrollWidth > element.clientWidth) complaints.push(`is cut: ${named(element)}`);
  }
  let plots = 0;
  for (const figure of document.querySelectorAll("figure")) {
    if (figure.querySelector(".nothing")) continue;
    const seen = [...figure.querySelectorAll(".plot > svg")].filter(shown);
    const sized = seen.filter((svg) => svg.getBoundingClientRect().width > 100 && svg.getBoundingClientRect().height > 20);
    if (sized.length !== 1) complaints.push(`shows ${sized.length} plots: ${named(figure)}`);
    plots += sized.length;
    for (const svg of sized) {
      const area = svg.getBoundingClientRect();
      if (!svg.querySelector("polyline:not(.g):not(.a), rect:not(.h), use")) complaints.push(`is an empty plot: ${named(figure)}`);
      const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim());
      const boxes = texts.map((text) => text.getBoundingClientRect());
      boxes.forEach((box, at) => {
        if (box.left < area.left - 1 || box.right > area.right + 1 || box.top < area.top - 1 || box.bottom > area.bottom + 1) complaints.push(`text stands out of its plot: ${named(texts[at])}, in ${named(figure)}`);
        const size = parseFloat(getComputedStyle(texts[at]).fontSize) * (area.width / svg.viewBox.baseVal.width);
        if (size < 9) complaints.push(`text of ${size} pixels: ${named(texts[at])}`);
        for (let other = 0; other < at; other++) {
          const across = Math.min(box.right, boxes[other].right) - Math.max(box.left, boxes[other].left);
          const down = Math.min(box.bottom, boxes[other].bottom) - Math.max(box.top, boxes[other].top);
          if (across > 1 && down > 5) complaints.push(`texts overlap: ${named(texts[at])} and ${named(texts[other])}, in ${named(figure)}`);
        }
      });
      for (const mark of svg.querySelectorAll("use, rect, polyline")) {
        const box = mark.getBoundingClientRect();
        if (box.left < area.left - 6 || box.right > area.right + 6 || box.top < area.top - 6 || box.bottom > area.bottom + 6) complaints.push(`is drawn out of its plot: ${named(mark)}, in ${named(figure)}`);
        for (const attribute of mark.attributes) if (/nan|inf|undefined|--/i.test(attribute.value)) complaints.push(`is no number: ${attribute.value}`);
      }
      if (svg.getAttribute("role") !== "img" || !svg.getAttribute("aria-labelledby")) complaints.push(`has no name: ${named(figure)}`);
    }
    for (const table of figure.querySelectorAll("table")) {
      if (!table.caption || !table.querySelector("th[scope=col]") || !table.querySelector("th[scope=row]")) complaints.push(`table without caption or heads: ${named(figure)}`);
      if (!table.checkVisibility()) complaints.push(`table cannot be seen: ${named(figure)}`);
    }
  }
  for (const box of document.querySelectorAll(".scroll")) if (box.tabIndex !== 0) complaints.push("a table cannot be scrolled by keys");
  if (!root.lang) complaints.push("no language");
  if (document.querySelectorAll("h1").length !== 1) complaints.push("not one h1");
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) complaints.push(`heading of level ${next} below ${level}`);
    level = next;
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) complaints.push(`twice: #${id}`);
  for (const link of document.querySelectorAll("a")) if (!link.hash || !document.getElementById(link.hash.slice(1))) complaints.push(`leads nowhere: ${named(link)}`);
  for (const name of ["header", "main", "nav"]) if (!document.querySelector(name)) complaints.push(`no ${name}`);
  return { plots, complaints };
})()
