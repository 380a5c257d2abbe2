(() => {
  const complaints = [];
  const live = document.querySelector("[aria-live=polite]"), tip = document.querySelector(".tip");
  if (!live || !tip) return ["the script did not run"];
  for (const plot of document.querySelectorAll(".plot")) {
    const name = plot.parentElement.querySelector("h3")?.textContent.slice(0, 60);
    plot.focus({ preventScroll: true });
    if (document.activeElement !== plot) complaints.push(`takes no focus: ${name}`);
    live.textContent = "";
    for (const key of ["ArrowRight", "ArrowRight", "End", "ArrowLeft"]) plot.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
    if (!/\d/.test(live.textContent)) complaints.push(`keys say no number: ${name}`);
    if (tip.hidden) complaints.push(`keys show nothing: ${name}`);
    plot.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    if (!tip.hidden) complaints.push(`Escape hides nothing: ${name}`);
    const svg = [...plot.querySelectorAll("svg")].find((svg) => svg.getClientRects().length);
    if (!svg) continue;
    const box = svg.getBoundingClientRect();
    plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 }));
    if (tip.hidden || !tip.textContent) complaints.push(`the pointer shows nothing: ${name}`);
    const shown = tip.getBoundingClientRect();
    if (shown.left < 0 || shown.right > document.documentElement.clientWidth) complaints.push(`stands out of the page: ${tip.textContent}`);
    plot.blur();
    if (!tip.hidden) complaints.push(`stays: ${tip.textContent}`);
  }
  for (const bar of document.querySelectorAll(".zoom")) {
    const plot = bar.previousElementSibling, [more, less] = bar.querySelectorAll("button");
    const wide = () => [...plot.querySelectorAll("svg")].find((svg) => svg.getClientRects().length)?.getBoundingClientRect().width;
    const before = wide();
    more.click();
    if (!(wide() > before * 1.5)) complaints.push("a plot cannot be enlarged");
    if (document.documentElement.scrollWidth > document.documentElement.clientWidth) complaints.push("an enlarged plot makes the page wide");
    less.click();
    if (wide() !== before) complaints.push("an enlarged plot stays so");
  }
  return complaints;
})()
