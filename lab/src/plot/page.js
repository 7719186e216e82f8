// The read-out of a line chart: a rule under the pointer and each line's value there.
for (const figure of document.querySelectorAll("figure.chart")) {
  const source = figure.querySelector("script");
  if (!source) continue;
  const data = JSON.parse(source.textContent);
  const svg = figure.querySelector("svg");
  const cross = figure.querySelector(".cross");
  const tip = figure.querySelector(".tip");
  const [x0, x1] = [Number(svg.dataset.x0), Number(svg.dataset.x1)];
  const show = (v) => v.toLocaleString("en", { maximumSignificantDigits: 4 });
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const mid = (low + high) >> 1;
      if (points[mid][0] < x) low = mid; else high = mid;
    }
    return x - points[low][0] < points[high][0] - x ? points[low] : points[high];
  };
  const hide = () => { cross.setAttribute("hidden", ""); tip.hidden = true; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const px = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    if (px < x0 || px > x1) return hide();
    const x = data.x[0] + (px - x0) / (x1 - x0) * (data.x[1] - data.x[0]);
    cross.removeAttribute("hidden");
    for (const [k, v] of [["x1", px], ["x2", px], ["y1", svg.dataset.y1], ["y2", svg.dataset.y0]]) {
      cross.setAttribute(k, v);
    }
    tip.textContent = show(x) + " " + data.xLabel.replace(/.*\((.*)\)/, "$1");
    for (const line of data.series) {
      if (!line.points.length || x > line.points.at(-1)[0]) continue;
      const row = document.createElement("div");
      const dot = document.createElement("i");
      dot.style.background = `var(--s${line.colour})`;
      row.append(dot, `${line.name}: ${show(nearest(line.points, x)[1])}`);
      tip.append(row);
    }
    tip.hidden = false;
    const left = event.clientX - figure.getBoundingClientRect().left;
    const flip = left > figure.clientWidth / 2;
    tip.style.left = flip ? "" : `${left + 14}px`;
    tip.style.right = flip ? `${figure.clientWidth - left + 14}px` : "";
    tip.style.top = `${event.clientY - figure.getBoundingClientRect().top - 10}px`;
  });
}
