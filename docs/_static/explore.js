// One position with six tokens: what each law's drafts allow, and what its rules accept. Drawn into #explore.
"use strict";

const TOKENS = "abcdef";

const sum = (values) => values.reduce((total, value) => total + value, 0);
const normalise = (weights) => weights.map((weight) => weight / sum(weights));
const mostLikely = (q) => [...q.keys()].sort((x, y) => q[y] - q[x] || x - y);

/** Every tuple of drafts with its probability, from the next draft's probabilities given those before it. */
function listTuples(numDrafts, nextProbs) {
  let tuples = [[[], 1]];
  for (let i = 0; i < numDrafts; i++) {
    tuples = tuples.flatMap(([drafts, prob]) =>
      nextProbs(drafts).map((next, token) => [[...drafts, token], prob * next]).filter(([, mass]) => mass > 0));
  }
  return tuples;
}

/** The strata of equal probability, as the group of each token. */
function strataOf(q, numDrafts) {
  const order = mostLikely(q);
  const left = (place) => sum(order.slice(place).map((token) => q[token]));
  const starts = [0];
  // A token that has at least an equal share of what is left is a stratum of its own.
  while (starts.length < numDrafts
         && left(starts.length) <= q[order[starts.length - 1]] * (numDrafts - starts.length)) {
    starts.push(starts.length);
  }
  const [alone, rest] = [starts.length - 1, numDrafts - starts.length + 1];
  for (let j = 1; j < rest; j++) {
    let place = alone;
    while (left(place) > left(alone) * (rest - j) / rest) place++;
    starts.push(Math.min(Math.max(place, starts.at(-1) + 1), q.length - (rest - j)));
  }
  const group = new Array(q.length);
  order.forEach((token, place) => { group[token] = starts.filter((start) => start <= place).length - 1; });
  return group;
}

/** α* = min over sets H of p(H) + 1 − P(all drafts are in H), and the H that attains it. */
function optimum(p, tuples) {
  let best = { rate: Infinity };
  for (let subset = 0; subset < 2 ** p.length; subset++) {
    const holds = (token) => subset & (1 << token);
    const contained = sum(tuples.map(([drafts, prob]) => (drafts.every(holds) ? prob : 0)));
    const rate = sum(p.map((mass, token) => (holds(token) ? mass : 0))) + 1 - contained;
    if (rate < best.rate - 1e-12) best = { rate, subset: [...p.keys()].filter(holds) };
  }
  return best;
}

/** Draft after draft is accepted with min(1, p/q), else p is replaced by the residual (p − q)₊. */
function recursiveRejection(p, q, numDrafts, replaced) {
  if (numDrafts === 0) return 0;
  const [accepted, left] = [p.map((mass, x) => Math.min(mass, q[x])), p.map((mass, x) => Math.max(mass - q[x], 0))];
  if (sum(left) < 1e-15) return 1;
  const residual = normalise(left);
  if (replaced) return sum(accepted) + (1 - sum(accepted)) * recursiveRejection(residual, q, numDrafts - 1, true);
  return sum(q.map((drawn, x) => {
    if (drawn <= accepted[x]) return accepted[x];
    const others = normalise(q.map((mass, y) => (y === x ? 0 : mass)));
    return accepted[x] + (drawn - accepted[x]) * recursiveRejection(residual, others, numDrafts - 1, false);
  }));
}

/** Each draft is accepted with min(1, p/(ρ q)); ρ is the least number for which the rule is lossless. */
function kSequential(p, q, numDrafts) {
  const once = (scale) => sum(p.map((mass, x) => Math.min(mass / scale, q[x])));
  const rate = (scale) => 1 - (1 - once(scale)) ** numDrafts;
  let [low, high] = [1, numDrafts];
  for (let i = 0; i < 60; i++) {
    const scale = (low + high) / 2;
    if (rate(scale) > scale * once(scale)) low = scale; else high = scale;
  }
  return rate(high);
}

/** All rates at one position: a law's name, its rules with their rates, and its optimum. */
function explore(p, q, numDrafts) {
  const top = mostLikely(q).slice(0, numDrafts);
  const without = (drafts) => normalise(q.map((mass, token) => (drafts.includes(token) ? 0 : mass)));
  const group = strataOf(q, numDrafts);
  const stratum = ({ length }) => normalise(q.map((mass, token) => (group[token] === length ? mass : 0)));
  const likely = top.slice(0, -1);
  const greedy = ({ length }) => (length < likely.length
    ? q.map((_, token) => Number(token === likely[length])) : without(likely));
  const certain = ({ length }) => q.map((_, token) => Number(token === top[length]));
  const laws = [
    ["the most likely tokens", certain, {}],
    ["independent drafts", () => q, {
      "recursive rejection": recursiveRejection(p, q, numDrafts, true), "K-SEQ": kSequential(p, q, numDrafts) }],
    ["without replacement", without, { "recursive rejection": recursiveRejection(p, q, numDrafts, false) }],
    ["greedy drafts", greedy, {}],
    ["stratified drafts", stratum, {}],
  ];
  return { group, laws: laws.map(([name, nextProbs, rules]) =>
    ({ name, rules, ...optimum(p, listTuples(numDrafts, nextProbs)) })) };
}

/** Draw sliders and bars; the weights and the number of drafts stand in the page's address. */
function draw(box) {
  const given = new URLSearchParams(location.hash.slice(1));
  const weights = (name, usual) => (given.get(name) || usual).split(",").map(Number);
  const state = { p: weights("p", "40,10,15,5,20,10"), q: weights("q", "25,30,20,15,5,5"), n: Number(given.get("n") || 2) };
  const slider = (name, x) => `<td><input type="range" min="${name === "q" ? 1 : 0}" max="50" value="${state[name][x]}"
    data-name="${name}" data-token="${x}" aria-label="weight of ${TOKENS[x]} in ${name}"><output></output></td>`;
  const sliders = [...TOKENS].map((token, x) => `<tr><th>${token}</th>${slider("p", x)}${slider("q", x)}<td class="stratum"></td></tr>`);
  const choices = [1, 2, 3, 4].map((n) => `<label><input type="radio" name="n" value="${n}"${n === state.n ? " checked" : ""}> ${n}</label>`);
  box.innerHTML = `<p>Drafts: ${choices.join(" ")}</p>
    <table><thead><tr><th></th><th>target p</th><th>draft q</th><th>stratum</th></tr></thead><tbody>${sliders.join("")}</tbody></table>
    <table class="rates"></table>`;
  const bar = (name, rate, note = "") => `<tr><td>${name}</td><td class="bar"><div style="width:${100 * rate}%"></div></td>
    <td data-rate="${rate}">${(100 * rate).toFixed(1)}%</td><td>${note}</td></tr>`;
  const show = () => {
    if (sum(state.p) === 0) state.p[0] = 1;
    const [p, q] = [normalise(state.p), normalise(state.q)];
    const { group, laws } = explore(p, q, state.n);
    box.querySelectorAll("input[type=range]").forEach((input) => {
      const mass = { p, q }[input.dataset.name][input.dataset.token];
      input.nextElementSibling.textContent = ` ${(100 * mass).toFixed(0)}%`;
    });
    box.querySelectorAll(".stratum").forEach((cell, x) => { cell.textContent = group[x] + 1; });
    box.querySelector(".rates").innerHTML = laws.map(({ name, rules, rate, subset }) => `<tr><th colspan="4">${name}</th></tr>`
      + Object.entries(rules).map(([rule, of]) => bar(rule, of)).join("")
      + bar("optimum α*", rate, `H* = {${subset.map((x) => TOKENS[x]).join(", ")}}`)).join("");
  };
  box.addEventListener("input", ({ target }) => {
    if (target.name === "n") state.n = Number(target.value);
    else state[target.dataset.name][target.dataset.token] = Number(target.value);
    history.replaceState(null, "", `#p=${state.p}&q=${state.q}&n=${state.n}`);
    show();
  });
  show();
}

if (document.getElementById("explore")) draw(document.getElementById("explore"));
