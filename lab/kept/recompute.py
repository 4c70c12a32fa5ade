#!/usr/bin/python3
"""Recompute the lab's results and the published figures from the raw data, with numpy and scipy.

  recompute.py pages TOP            every figure of the generated tables in README.md, docs/results/README.md and docs/results/runs.md
  recompute.py run DIR RESULTS ...  the results of runs (DIR), as the lab computed them (RESULTS, JSON of its report's "results")

It reads journals (results.jsonl, results.jsonl.gz), files of the former harness, index.yaml, figures.yaml and the pages. It uses nothing of Weir's
code. It prints what differs and exits with 1, or prints how many figures it compared.

Definitions: lab/DESIGN.md, "What may be claimed". What it does not recompute, since it is simulated: "detectable".
"""
import datetime
import functools
import gzip
import hashlib
import itertools
import json
import math
import os
import re
import sys

import numpy as np
import scipy.stats
import yaml

MIN_BLOCKS = 6
ALPHA = 0.05
MARGIN = 0.05
MIN_LEVELS = 5  # of a shape
GROWTH = 0.1  # of its median, which a metric that grows gains
SHAPE = 0.05  # by which levels may be off a shape
LAWS = ("constant", "linear", "quadratic", "exponential", "power")

problems = []
compared = 0


def check(what, ok, said, ours):
    global compared
    compared += 1
    if not ok:
        problems.append(f"{what}: says {said}, and the raw data {ours}")


def close(what, said, ours, tolerance=1e-6):
    """Two numbers, to six digits."""
    if ours is None or said is None:
        check(what, ours is None and said is None, said, ours)
        return
    check(what, math.isclose(said, ours, rel_tol=tolerance, abs_tol=1e-12), said, ours)


# --- statistics ---

@functools.cache
def coverages(n):
    """How often the k-th values from both ends of n enclose the median, by k."""
    return [1.0] + [1 - 2 * scipy.stats.binom.cdf(k - 1, n, 0.5) for k in range(1, (n + 1) // 2 + 2)]


def median_interval(x, level):
    """Hettmansperger and Sheather (1986): between the order statistics around the level. Infinite with too few values."""
    x = np.sort(np.asarray(x, float))
    n, coverage = len(x), coverages(len(x))
    k = max(j for j in range(0, (n + 1) // 2 + 1) if coverage[j] >= level)
    if k == 0:
        return -math.inf, math.inf
    if k == (n + 1) // 2:
        return float(x[k - 1]), float(x[n - k])
    i = (coverage[k] - level) / (coverage[k] - coverage[k + 1])
    w = (n - k) * i / (k + (n - 2 * k) * i)
    inwards = lambda a, b: float(a) if math.isinf(a) or math.isinf(b) else float((1 - w) * a + w * b)
    return inwards(x[k - 1], x[k]), inwards(x[n - k], x[n - k - 1])


def median_p(x):
    """The level at which the interval begins to exclude 0."""
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        a, b = median_interval(x, 1 - p)
        low, high = (p, high) if a <= 0 <= b else (low, p)
    return high


def holm(ps):
    order = np.argsort(ps, kind="stable")
    out, worst = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(ps) - rank) * ps[i]))
        out[i] = worst
    return out


def points(x):
    """Values by block as pairs of their least and their greatest: those that were measured have both alike."""
    return list(zip(x, x))


def log_ratios(x, base):
    """Log-ratios of the blocks in which both are known: the least and the greatest that each can be; how many have a 0 on one side only, and in how many one
    of both is a bound. x, base: pairs by block, NaN where there is none."""
    least, most, zeros, bounds = [], [], 0, 0
    log = lambda v: -math.inf if v == 0 else math.log(v)
    for (a, a2), (b, b2) in zip(x, base):
        if np.isnan([a, a2, b, b2]).any() or a < 0 or b < 0:
            continue
        low, high = log(a) - log(b2), log(a2) - log(b)
        if a == a2 and b == b2:
            low = high = 0.0 if a == b == 0 else low
            zeros += math.isinf(low)
        else:
            bounds += 1
            low, high = -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high
        least.append(low)
        most.append(high)
    return np.sort(least), np.sort(most), zeros, bounds


def halfway(x):
    """The median, infinite values among them; NaN between -inf and inf."""
    with np.errstate(invalid="ignore"):
        return float(np.median(x))


def known(least, most, none):
    """Of a median that lies between these: the figure, and how it is told. none: what says nothing of the least."""
    if least == most and math.isfinite(least):
        return least, ""
    if least > none and math.isfinite(least):
        return least, "at least"
    return (most, "at most") if math.isfinite(most) else (None, "")


def ratio(x, base, margin):
    """Ratio of x to base without its verdict; p is not corrected. x, base: pairs by block. What bounds leave without a ratio may be anything: p is 1."""
    least, most, zeros, bounds = log_ratios(x, base)
    r = {"blocks": len(least), "zeros": zeros, "bounds": bounds, "open": ""}
    if len(least) < MIN_BLOCKS:
        return r | {"verdict": "too few blocks"}
    if 2 * zeros >= len(least):
        return r | {"verdict": "no ratio"}
    if not bounds:
        far = max([math.log(2)] + [abs(v) for v in least if math.isfinite(v)])
        least = most = np.clip(least, -far, far)
    a, b = halfway(least), halfway(most)
    middle, how = (b, "at most") if a < b < 0 else known(a, b, -math.inf)
    if middle is None:
        return r | {"verdict": "no ratio", "p": 1.0}
    ends = lambda level: (math.exp(median_interval(least, level)[0]), math.exp(median_interval(most, level)[1]))
    low, high = ends(1 - ALPHA)
    within = ends(1 - 2 * ALPHA)
    equivalent = within[0] > 1 / (1 + margin) and within[1] < 1 + margin
    p = median_p(least) if a > 0 or not bounds else median_p(most) if b < 0 else 1.0
    return r | {"ratio": math.exp(middle), "open": how, "low": low, "high": high, "p": p, "equivalent": equivalent}


def alone(x):
    """Median and interval of values by themselves. x: pairs by block."""
    x = [v for v in x if not np.isnan(v).any()]
    if not x:
        return None, "", None
    least, most = [v[0] for v in x], [v[1] for v in x]
    middle, how = known(halfway(least), halfway(most), 0)
    interval = (median_interval(least, 1 - ALPHA)[0], median_interval(most, 1 - ALPHA)[1])
    return middle, how, interval if len(x) >= MIN_BLOCKS and middle is not None else None


def verdicts(ratios):
    """Adds corrected p-values and verdicts to ratios by level. Those that bounds leave without a ratio count in the correction of the others."""
    family = sorted(k for k, r in ratios.items() if "p" in r)
    for k, p in zip(family, holm([ratios[k]["p"] for k in family])):
        r = ratios[k]
        r["p"] = p
        if "ratio" in r:
            r["verdict"] = "equivalent" if r["equivalent"] else "inconclusive" if p >= ALPHA else "higher" if r["ratio"] > 1 else "lower"
    return ratios


def valid(s):
    return s[np.isfinite(s)]


# --- a run of the lab ---

class Run:
    def __init__(self, path):
        lines = read_lines(path)
        self.header = json.loads(lines[0])
        self.study = self.header["study"]
        self.records, self.steps, self.cells, self.loads = [], {}, {}, {}
        for line in lines[1:]:
            r = json.loads(line)
            if "step" in r:
                self.steps.setdefault(key(r["step"]["of"]), []).append(r["step"])
            elif "trial" in r:
                self.records.append(r)
                self.cells[key(r["trial"])] = r

    def part(self, name):
        return next(p for p in self.study["parts"] if p["name"] == name)

    def blocks(self, part):
        return part[self.header["mode"]]["blocks"]

    def series(self, part, levels, value, duplicate=False):
        """A value of a variant by block, NaN where there is no valid trial, or only a bound."""
        return np.array([a if a == b else np.nan for a, b in self.ranges(part, levels, value, duplicate)])

    def ranges(self, part, levels, value, duplicate=False):
        """A value of a variant by block: its least and its greatest, both NaN where there is no valid trial."""
        if part["experiment"] != "ndr" or value not in ("ndr", "pdr"):
            return points(self.values(part, levels, value, duplicate))
        variant = ",".join(levels[f["name"]] for f in part["factors"])
        return [self.load((part["name"], b, variant, duplicate), value.upper()) for b in range(self.blocks(part))]

    def load(self, of, goal):
        """The NDR or PDR of a trial (a key of cells): its least and its greatest, both NaN where there is none. Each is looked at once."""
        if (of, goal) not in self.loads:
            r = self.cells.get(of, {"void": "not made"})
            if r.get("void") or r.get("skipped"):
                self.loads[of, goal] = math.nan, math.nan
            elif self.header["format"] == 1 and not (r.get("raw") or {}).get("verification"):  # versions that did not verify
                value = r.get("values", {}).get(goal.lower(), math.nan)
                self.loads[of, goal] = value, value + math.inf if r.get("values", {}).get("limited") else value
            else:
                where = f"{of[0]} {of[2]}{chr(39) if of[3] else ''} block {of[1]} {goal}"
                self.loads[of, goal] = load_range(where, r, self.steps.get(of, []), goal)
        return self.loads[of, goal]

    def values(self, part, levels, value, duplicate=False):
        """A value of a variant by block as the journal has it, NaN where there is no valid trial."""
        variant = ",".join(levels[f["name"]] for f in part["factors"])
        out = np.full(self.blocks(part), np.nan)
        for b in range(len(out)):
            r = self.cells.get((part["name"], b, variant, duplicate))
            if r and not r.get("void") and not r.get("skipped") and value in r.get("values", {}):
                out[b] = r["values"][value]
        return out

    def comparison(self, part, group, metric):
        """The duplicate, and every level of the compared factor, against the baseline."""
        at = lambda level: group | {part["compare"]: level}
        margin = metric.get("margin") or MARGIN
        base = self.ranges(part, at(part["baseline"]), metric["name"])
        twin = self.ranges(part, at(part["baseline"]), metric["name"], True)
        levels = [l for l in factor(part, part["compare"]) if l != part["baseline"]]
        return (verdicts({"": ratio(twin, base, margin)})[""],
                verdicts({l: ratio(self.ranges(part, at(l), metric["name"]), base, margin) for l in levels}))

    def counts(self):
        c = {"measured": 0, "void": 0, "skipped": 0, "again": 0}
        for r in self.records:
            c["again"] += len(r.get("tries", []))
            c["skipped" if r.get("skipped") else "void" if r.get("void") else "measured"] += 1
        return c

    def took(self):
        """Seconds from the beginning to the end of the last trial."""
        ends = [when(r["begun"]) + r["took_ns"] / 1e9 for r in self.records if not r.get("skipped")]
        return max(ends) - when(self.header["started"])

    def aa(self, labels=False):
        """How often the baseline was told from itself, and in how many comparisons without bounds, which could tell nothing; labels counts the levels of the
        factor label, too."""
        told = different = 0
        for part in self.study["parts"]:
            for group in groups(part):
                for metric in part["metrics"]:
                    twin, levels = self.comparison(part, group, metric)
                    for r in [twin] + (list(levels.values()) if labels and part["compare"] == "label" else []):
                        counts = "ratio" in r and r["bounds"] == 0
                        told += counts
                        different += counts and r["p"] < ALPHA
        return different, told

    def claim(self, part, claim, system=None):
        """Our figure of a claim on a system (the nearest one if none is given) with its interval; None where it was not measured."""
        fill = lambda given: {f["name"]: given.get(f["name"], part["baseline"] if f["name"] == part["compare"] else f["levels"][0]) for f in part["factors"]}
        at = dict(claim.get("at") or {})
        if system or claim.get("systems"):
            at[part["compare"]] = system or claim["systems"][0]
        if claim.get("shape"):
            fit = self.shape(part, claim, system)
            return (fit["slope"][0], fit["slope"][1:]) if fit else (None, None)
        sides = [at, at | claim["against"]] if claim.get("against") else [at]
        if any(a < b for levels in sides for a, b in self.ranges(part, fill(levels), claim["metric"])):
            return None, None  # of bounds nothing is claimed
        x = self.series(part, fill(at), claim["metric"])
        if claim.get("against"):
            base = self.series(part, fill(at | claim["against"]), claim["metric"])
            if any(b == 0 for a, b in zip(x, base) if not np.isnan(a)):
                return None, None
            x = x / base
        x = valid(x)
        if not len(x):
            return None, None
        return float(np.median(x)), median_interval(x, 1 - ALPHA) if len(x) >= MIN_BLOCKS else None

    def shape(self, part, claim, system=None):
        """How well laws predict the blocks along a factor, of 1/metric where it is to fall as 1/(a + b x). None where there are too few levels."""
        at = {f["name"]: part["baseline"] if f["name"] == part["compare"] else f["levels"][0] for f in part["factors"]} | (claim.get("at") or {})
        if system or claim.get("systems"):
            at[part["compare"]] = system or claim["systems"][0]
        x, rows = [], []
        for level in factor(part, claim["along"]):
            pairs = self.ranges(part, at | {claim["along"]: level}, claim["metric"])
            if any(a < b for a, b in pairs):
                continue  # which of its blocks are bounds depends on their values
            y = np.array([a for a, _ in pairs])
            if len(valid(y)) >= MIN_BLOCKS:
                x.append(float(level))
                rows.append(y)
        if len(x) < MIN_LEVELS:
            return None
        y = np.array(rows).T
        y = y[~np.isnan(y).any(axis=1)]
        if len(y) < MIN_BLOCKS or (y <= 0).any():
            return None
        y = 1 / y if claim["shape"] == "inverse" else y
        return fit_shape(LAW[claim["shape"]], np.array(x), y)


# Of the search and verification of NDR and PDR. Loads are in frames a second.
HEADROOM = 1.3  # how many times a load the generator must be able to send
GOALS = {"NDR": 0.0, "PDR": 0.005}  # shares of loss: with that much a load is refused, but 0 is none
LEAST_OFFERED = 0.995  # of the frames that are not near stalls
MOST_STALLED = 0.2  # of the frames: with more a step says nothing
IN_A_ROW = 3  # trials that verify a load
ENOUGH_TIME = 5  # full-length trials of the search that settle a load


def denied(step):
    """Whether the generator could not send a step's load."""
    return step["values"].get("offered", 1) < LEAST_OFFERED


def verification(steps, goal):
    """The highest load that trials in a row verified, and the lowest that one of them, or the short one before them, refused; 0 where there is none."""
    ours = [s for s in steps if s["what"] in ("try " + goal, "verify " + goal)]
    refuses = lambda s: denied(s) or 0 < s["values"]["loss"] >= GOALS[goal]
    verified, refused = [0], []
    for (what, load, lost), row in itertools.groupby(ours, lambda s: (s["what"], s["load"], refuses(s))):
        if lost:
            refused.append(load)
        elif what == "verify " + goal and len(list(row)) >= IN_A_ROW:
            verified.append(load)
    return max(verified), min(refused, default=0)


def refused_by_search(steps, goal, full):
    """The lowest load that at some time had lost too much in more than half of the time that settles a load; 0 where there is none. Of trials shorter than a
    full one that time counts by which those that lost too much are longer than the others."""
    times, refused = {}, []
    for s in steps:
        if s["what"] != "search":
            continue
        loss = max(s["values"]["loss"], 1 - s["values"]["offered"] if denied(s) else 0)
        t = times.setdefault(s["load"], dict.fromkeys(itertools.product((False, True), repeat=2), 0))
        t[s["length_ns"] >= full, loss > GOALS[goal]] += s["length_ns"]
        high = t[True, True] + max(0, t[False, True] - t[False, False])
        if 2 * high > max(high + t[True, False], ENOUGH_TIME * full):
            refused.append(s["load"])
    return min(refused, default=0)


def by_steps(steps, goal, full):
    """What the steps of a trial say of a goal: the generator's ceiling, the lowest load that it could not send, the highest that was verified, and the lowest
    that the verification refused, or the search, if it found none to verify. None or 0 where there is none. full: length of the search's full trials."""
    steps = [s for s in steps if not s.get("void")]
    ceiling = next((s["values"]["arrived"] for s in steps if s["what"] == "ceiling"), None)
    begun = any(s["what"] in ("try " + goal, "verify " + goal) for s in steps)
    steps = [s for s in steps if s["what"] in ("search", "try NDR", "try PDR", "verify NDR", "verify PDR") and s["values"].get("stalled", 0) <= MOST_STALLED]
    verified, refused = verification(steps, goal)
    if goal == "PDR":  # what met NDR has met PDR
        verified = max(verified, verification(steps, "NDR")[0])
    if not verified and not begun:
        refused = refused_by_search(steps, goal, full)
    return ceiling, min((s["load"] for s in steps if denied(s)), default=0), verified, refused


def load_range(where, record, steps, goal):
    """NDR and PDR in Mpps, from the steps: the load that was verified; that or more, if the generator cannot send enough beyond it; less than what was
    refused, if none was verified and the generator can send enough beyond that. What the record says has to be the same."""
    raw, said = record.get("raw") or {}, record.get("values", {}).get(goal.lower())
    told, found = (next((r for r in raw.get(name) or [] if r["goal"] == goal), {}) for name in ("verification", "results"))
    ceiling, unsent, verified, refused = by_steps(steps, goal, record["trial"]["duration_ns"])
    close(where + " ceiling", raw.get("ceiling"), ceiling)
    close(where + " not offered", raw.get("not_offered", 0), unsent)
    close(where + " verified", told.get("load"), verified)
    close(where + " refused", (told if told.get("load") or found.get("lower") else found).get("upper"), refused)
    check(where + " value", math.isclose(said or 0, verified / 1e6), said, verified / 1e6)  # what was not found is 0, or missing
    limits = lambda load: ceiling is None or ceiling < HEADROOM * load or 0 < unsent < HEADROOM * load
    if verified:
        return verified / 1e6, math.inf if limits(verified) else verified / 1e6
    return (0.0, refused / 1e6) if refused and not limits(refused) else (math.nan, math.nan)


LAW = {"linear": "linear", "inverse": "linear", "exponential": "exponential"}


def law_terms(law, x):
    """The columns that a law's parameters multiply; x is scaled, which changes no prediction."""
    u = np.log(x) if law == "power" else x / np.abs(x).max()
    return np.column_stack([u ** power for power in range({"constant": 1, "quadratic": 3}.get(law, 2))])


def law_logs(law, x, m):
    """The logarithms of what a law predicts at x, fitted to the points exp(m); at most 1 from m."""
    terms = law_terms(law, x)
    if law in ("exponential", "power"):
        logs = terms @ np.linalg.lstsq(terms, m, rcond=None)[0]
    else:  # (predicted - exp m) / exp m is terms / exp m times the parameters, less 1
        predicted = terms @ np.linalg.lstsq(terms / np.exp(m)[:, None], np.ones(len(m)), rcond=None)[0]
        logs = np.array([math.log(v) if v > 0 else -math.inf for v in predicted])
    return np.minimum(np.maximum(logs, m - 1), m + 1)


def root(d):
    """The square root of a number's size, with its sign."""
    return math.copysign(math.sqrt(abs(d)), d)


def root_interval(v):
    """The interval of the median of numbers by block, with the root at both ends."""
    return tuple(root(end) for end in median_interval(v, 1 - ALPHA))


def with_median(v):
    """The median of numbers by block, and its interval."""
    return (float(np.median(v)), *median_interval(v, 1 - ALPHA))


def theil_sen(x, y):
    """The median of the slopes between all pairs of points."""
    return float(np.median([(d - b) / (c - a) for (a, b), (c, d) in itertools.combinations(zip(x, y), 2)]))


def law_errors(x, y):
    """By block: how far each law is off that was fitted to the other blocks, and the noise, which no law explains (variances over the levels)."""
    z = np.array([np.log(row) - np.log(row).mean() for row in y])
    n = len(z)
    errors, noise = {law: [] for law in LAWS if law != "power" or min(x) > 0}, []
    for b in range(n):
        m = np.median(np.delete(z, b, axis=0), axis=0)
        noise.append(np.var(z[b] - m) * (n - 1) / (n - 1 + math.pi / 2))
        for law in errors:
            errors[law].append(np.var(z[b] - law_logs(law, x, m)))
    return {law: np.array(e) for law, e in errors.items()}, np.array(noise)


def fit_shape(law, x, y):
    """How well a law describes the blocks (rows of y) along the levels x, beside the other laws."""
    errors, noise = law_errors(x, y)
    slopes = np.array([theil_sen(x, row) for row in y])
    fit = {
        "law": law, "blocks": len(y),
        "errors": {l: root(np.median(e)) for l, e in errors.items()}, "noise": root(np.median(noise)),
        "misfit": root_interval(errors[law] - noise),
        "behind": {l: root_interval(e - errors[law]) for l, e in errors.items() if l != law},
        "slope": with_median(slopes),
        "gain": with_median(slopes * (max(x) - min(x)) / np.median(y, axis=1)),
    }
    if min(x) > 0:
        fit["exponent"] = with_median([scipy.stats.linregress(np.log(x), np.log(row)).slope for row in y])
    return fit


def shape_rivals(fit, t):
    """How far each rival is behind, as an interval, and the edge that it is judged by."""
    rivals = {law: (interval, 0.0) for law, interval in fit["behind"].items()}
    if fit["law"] == "linear":
        rivals["quadratic"] = fit["behind"]["quadratic"], -t  # it contains the line
        if "exponent" in fit and 1 - t <= fit["exponent"][1] and fit["exponent"][2] <= 1 + t:
            del rivals["power"]  # it is the line through the origin
    return rivals


def shape_word(fit, t):
    """The verdict on a claim of a shape."""
    if fit is None:
        return "not testable"
    (_, least, most), (low, high), rivals = fit["gain"], fit["misfit"], shape_rivals(fit, t)
    if most < GROWTH:
        return "contradicted"
    if least <= 0:
        return "inconclusive"
    if low > t or any(end < edge for (_, end), edge in rivals.values()):
        return "same direction"
    ahead = all(begin > edge or begin == edge < 0 for (begin, _), edge in rivals.values())
    return "reproduced" if high <= t and ahead else "inconclusive"


def verdict(part, claim, interval, shape=None):
    """What a claim's interval, or the fit of its shape, says of it."""
    v = word(part, claim, interval, shape)
    if claim["source"].startswith("target"):
        return {"reproduced": "met", "same direction": "missed", "contradicted": "missed"}.get(v, v)
    return v


RANK = ["contradicted", "missed", "inconclusive", "same direction", "reproduced", "met", "not testable"]


def headline(claim):
    """The verdict on a claim: that on the nearest system; of a claim about every system the worst of those that are no stand-ins."""
    of = [on["verdict"] for on in claim["systems"]]
    if claim["claim"].get("every"):
        return min(of[: len(claim["claim"]["systems"])], key=RANK.index)
    return of[0]


def word(part, claim, interval, shape):
    if claim.get("not_testable"):
        return "not testable"
    if claim.get("value") and not claim.get("against"):
        return "not testable"
    if claim.get("shape"):
        return shape_word(shape, claim.get("tolerance") or SHAPE)
    if interval is None:
        return "inconclusive"
    low, high = interval
    off = claim.get("tolerance") or (0.25 if claim.get("value") else 0)
    ratio = claim.get("against") is not None  # its tolerance reaches at most half of the way to 1
    if claim.get("at_least"):
        edge = claim["at_least"] * (1 - off)
        if ratio and claim["at_least"] > 1:
            edge = max(edge, math.sqrt(claim["at_least"]))
        return "reproduced" if low >= edge else "contradicted" if high < edge else "inconclusive"
    if claim.get("at_most"):
        edge = claim["at_most"] * (1 + off)
        if ratio and claim["at_most"] < 1:
            edge = min(edge, math.sqrt(claim["at_most"]))
        return "reproduced" if high <= edge else "contradicted" if low > edge else "inconclusive"
    band = 1 + (next(m for m in part["metrics"] if m["name"] == claim["metric"]).get("margin") or MARGIN)
    value = claim["value"]
    if 1 / band <= value <= band:  # no difference was published
        least, most = (value / (1 + off), value * (1 + off)) if claim.get("tolerance") else (1 / band, band)
        return "reproduced" if least <= low and high <= most else "contradicted" if high < least or low > most else "inconclusive"
    off = math.exp(min(math.log(1 + off), abs(math.log(value)) / 2))
    least, most = value / off, value * off
    least, most = (max(least, band), most) if value > 1 else (least, min(most, 1 / band))
    if low > 1 / band and high < band or (high < 1 if value > 1 else low > 1):
        return "contradicted"
    if low <= 1 <= high:
        return "inconclusive"
    return "reproduced" if least <= low and high <= most else "same direction"


def read_lines(path):
    name = os.path.join(path, "results.jsonl")
    opened = open(name, "rb") if os.path.exists(name) else gzip.open(name + ".gz", "rb")
    with opened as f:
        text = f.read()
    return text[: text.rfind(b"\n")].split(b"\n")  # a line without its end was cut off


def key(trial):
    return trial["part"], trial["block"], ",".join(trial["variant"]), trial.get("duplicate", False)


def factor(part, name):
    return next(f["levels"] for f in part["factors"] if f["name"] == name)


def groups(part):
    out = [{}]
    for f in part["factors"]:
        if f["name"] != part["compare"]:
            out = [g | {f["name"]: l} for g in out for l in f["levels"]]
    return out


def when(text):
    """Seconds of a time such as 2026-11-22T19:50:43.30805795Z."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.datetime.fromisoformat(whole + "+00:00").timestamp() + float("0." + (fraction or "0"))


# --- the lab's results of a run ---

def check_run(directory, results):
    run = Run(directory)
    for name, n in run.counts().items():
        check(name, results[name] == n, results[name], n)
    distrusted = [d["part"] for d in results.get("distrusted", [])]
    check("parts", [p["part"]["name"] for p in results["parts"]] == [p["name"] for p in run.study["parts"]], "others", "these")
    for said in results["parts"]:
        part = run.part(said["part"]["name"])
        wanted = groups(part)
        check(f"{part['name']}: groups", [g.get("levels") or {} for g in said["groups"]] == wanted, "others", wanted)
        for group, g in zip(said["groups"], wanted):
            for m in group["metrics"]:
                check_metric(run, part, g, m, part["name"] in distrusted)
        voids = sum(1 for r in run.records if r["trial"]["part"] == part["name"] and r.get("void") and not r.get("skipped"))
        check(f"{part['name']}: voids", len(said.get("voids") or []) == voids, said.get("voids"), voids)
        for c in said.get("claims") or []:
            where = f"{part['name']}, claim {c['claim']['id']}"
            check(where + " verdict", c["verdict"] == headline(c), c["verdict"], headline(c))
            for on in c["systems"]:
                check_claim(f"{where} on {on['system']}", run, part, c["claim"], on, part["name"] in distrusted)


def check_metric(run, part, group, m, distrusted):
    """distrusted: the order of the part's trials was not random, so nothing is claimed. Whether it was is not recomputed."""
    name = m["metric"]["name"]
    where = f"{part['name']} {','.join(group.values())} {name}"
    for v in m["values"]:
        pairs = run.ranges(part, group | {part["compare"]: v["level"]}, name, v.get("duplicate", False))
        s = np.array([a if a == b else np.nan for a, b in pairs])
        x, n = valid(s), sum(not np.isnan(a) for a, _ in pairs)
        at = f"{where} {v['level']}{chr(39) if v.get('duplicate') else ''}"
        check(at + " n", v["n"] == n, v["n"], n)
        check(at + " limited", v.get("limited", 0) == sum(b == math.inf for _, b in pairs), v.get("limited"), pairs)
        check(at + " not found", v.get("not_found", 0) == sum(a < b < math.inf for a, b in pairs), v.get("not_found"), pairs)
        for told, (a, b) in zip(v.get("bounds") or [], pairs):
            check(at + " bounds", (told is None) == (a == b or np.isnan(a)), told, (a, b))
            if told:
                check_interval(at + " bound", told, (a, b))
        middle, how, interval = alone(pairs)
        check(at + " is told", v.get("open", "") == how, v.get("open"), how)
        check(at + " blocks", [b is None for b in v["blocks"]] == list(np.isnan(s)) and np.allclose([b for b in v["blocks"] if b is not None], x), v["blocks"], s)
        close(at + " median", v["median"], middle)
        check_interval(at, v["interval"], interval)
        if v["cv"] is not None:
            close(at + " cv", v["cv"], float(np.std(x, ddof=1) / abs(np.mean(x))))
    twin, levels = run.comparison(part, group, next(k for k in part["metrics"] if k["name"] == name))
    check_ratio(where + " duplicate", m["comparison"]["duplicate"], twin, distrusted)
    said = m["comparison"]["variants"]
    check(where + " levels", sorted(said) == sorted(levels), sorted(said), sorted(levels))
    for level in said:
        check_ratio(f"{where} {level}", said[level], levels[level], distrusted)


def check_ratio(where, said, ours, distrusted):
    if distrusted and "ratio" in ours:
        ours = ours | {"verdict": "not claimed"}
    check(where + " blocks", said["blocks"] == ours["blocks"] and said.get("zeros", 0) == ours["zeros"] and said.get("bounds", 0) == ours["bounds"], said, ours)
    check(where + " is told", said.get("open", "") == ours["open"], said.get("open"), ours["open"])
    check(where + " verdict", said["verdict"] == ours["verdict"], said["verdict"], ours["verdict"])
    if "ratio" in ours:
        close(where + " ratio", said["ratio"], ours["ratio"])
        check_interval(where, said["interval"], (ours["low"], ours["high"]))
        close(where + " p", said["p"], ours["p"])


def check_interval(where, said, ours):
    check(where + " has an interval", (said is None) == (ours is None), said, ours)
    if said and ours:
        for end, v in zip(("low", "high"), ours):
            close(f"{where} {end}", said[end], v if math.isfinite(v) else None)


def check_claim(where, run, part, claim, on, distrusted):
    if on["ours"] is None:
        return  # a claim may be not testable for reasons that no figure has
    ours, interval = run.claim(part, claim, on["system"])
    close(where, on["ours"], ours)
    check_interval(where, on["interval"], interval)
    fit = run.shape(part, claim, on["system"]) if claim.get("shape") else None
    if fit:
        check_shape(where, on["shape"], fit)
    want = "not testable" if distrusted else verdict(part, claim, interval, fit)
    check(where + " verdict", on["verdict"] == want, on["verdict"], want)


def check_shape(where, said, ours):
    check(where + " laws", (said["law"], said["blocks"], sorted(said["errors"]), sorted(said["behind"])) ==
          (ours["law"], ours["blocks"], sorted(ours["errors"]), sorted(ours["behind"])), said, ours)
    for law, error in ours["errors"].items():
        close(f"{where} error of the law {law}", said["errors"][law], error)
    close(where + " noise", said["noise"], ours["noise"])
    check_interval(where + " misfit", said["misfit"], ours["misfit"])
    for law, interval in ours["behind"].items():
        check_interval(f"{where} behind, {law}", said["behind"].get(law), interval)
    for name in ("slope", "gain", "exponent"):
        if name in ours:
            close(f"{where} {name}", said[name], ours[name][0])
            check_interval(f"{where} {name}", said[name + "_interval"], ours[name][1:])


# --- the pages ---

DIGITS = 3
SIGNS = {"": "", "at least": "≥ ", "at most": "≤ "}  # before a figure that is a bound
NUMBER = r"-?[0-9][0-9,]*(?:\.[0-9]+)?"


def numbers(text):
    return [float(t.replace(",", "")) for t in re.findall(NUMBER, text)]


def shown(what, text, *ours):
    """The numbers of a cell, in their order, each with three significant digits."""
    said, ours = numbers(text), [v for v in ours if v != math.inf]  # "∞" is no number
    if len(said) != len(ours):
        check(what, False, repr(text), [f"{v:.5g}" for v in ours])
        return
    for s, v in zip(said, ours):
        half = 0 if v == 0 else 0.5 * 10.0 ** (math.floor(math.log10(abs(v))) - DIGITS + 1)
        check(what, abs(s - v) <= half * 1.001, text, f"{v:.6g}")


def signed(what, text, how):
    """The cell without its sign, which tells how its figure is known."""
    sign = re.match("(?:[≥≤] )?", text).group(0)
    check(what + " sign", sign == SIGNS[how], repr(text), how or "no bound")
    return text[len(sign):]


class Pages:
    def __init__(self, top):
        self.top, self.dir = top, os.path.join(top, "docs", "results")
        with open(os.path.join(self.dir, "index.yaml"), encoding="utf-8") as f:
            self.index = {r["run"]: r for r in yaml.safe_load(f)["runs"]}
        with open(os.path.join(self.dir, "figures.yaml"), encoding="utf-8") as f:
            self.tables = {t["name"]: t for t in yaml.safe_load(f)["tables"]}
        self.runs = {}

    def run(self, name):
        if name not in self.runs:
            path = os.path.join(self.dir, name)
            if name.endswith(".json"):
                with open(path, encoding="utf-8") as f:
                    self.runs[name] = {r["name"]: r for r in json.load(f)["results"]}
            elif os.path.exists(os.path.join(path, "repeat.json")):
                self.runs[name] = [Run(os.path.join(path, d)) for d in sorted(os.listdir(path)) if d.isdigit()]
            else:
                self.runs[name] = Run(path)
        return self.runs[name]

    def check(self):
        for name, row in self.index.items():
            self.check_raw(name, row)
        seen = set()
        for page in ("README.md", "docs/results/README.md", "docs/results/runs.md"):
            with open(os.path.join(self.top, page), encoding="utf-8") as f:
                blocks = re.findall(r"<!-- figures (\S+) -->\n(.*?)<!-- end of figures -->", f.read(), re.S)
            for name, text in blocks:
                seen.add(name)
                if name == "runs":
                    self.check_index(page, text)
                else:
                    self.check_table(f"{page}, {name}", self.tables[name], text)
        check("tables on the pages", len(seen) > 1, seen, "some")

    def check_raw(self, name, row):
        """The raw data are those of the row."""
        for file, digest in row["raw"].items():
            path = os.path.join(self.dir, file if name.endswith(".json") else os.path.join(name, file))
            opened = open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz", "rb")
            with opened as f:
                check(f"{name}/{file}", hashlib.sha256(f.read()).hexdigest() == digest, digest, "another digest")

    def check_index(self, page, text):
        rows = cells(text)[1:]
        said = [(re.match(r"\[(.*?)\]", r[0]).group(1), r[2], r[3]) for r in rows]
        want = [(n, r["started"].strftime("%Y-%m-%d %H:%M"), r.get("version", "not said")) for n, r in self.index.items()]
        check(f"{page}: runs", said == want[::-1], said, want[::-1])

    def check_table(self, where, table, text):
        rows = cells(text)
        heads, rows = rows[0], rows[1:]
        lines = table.get("lines") or table["claims"]
        check(where + " lines", len(rows) == len(lines), len(rows), len(lines))
        of = []
        for line, row in zip(lines, rows):
            name = line.get("run") or table["run"]
            if name not in of:
                of.append(name)
            run, at = self.run(name), f"{where}, {row[0]!r}"
            if "again" in table:
                if table["again"] not in of:
                    of.append(table["again"])
                self.check_agree(at, line, run, self.run(table["again"]), row)
            elif "claims" in table:
                self.check_claim(at, run, line["id"], row)
            else:
                expected = bench_line(run[line["bench"]], line) if "bench" in line else lab_line(run, line)
                check_line(at, expected, column(heads, row))
        for name in table.get("tell", []):
            if name not in of:
                of.append(name)
        told = re.findall(r"^- \[(.*?)\]\(.*$", text, re.M)
        check(where + " runs", told == of, told, of)
        for line in re.findall(r"^- \[.*$", text, re.M):
            self.check_about(where, line)

    def check_agree(self, where, line, one, two, row):
        """A quantity in two runs: the intervals overlap, or not."""
        ours = [measured(one, line), measured(two, line | line.get("other", {}))]
        check(where + " what", row[0] == line["what"], row[0], line["what"])
        for cell, (how, *numbers) in zip(row[1:3], ours):
            body = re.sub(r"[^0-9.,()\s-]|(?<![0-9])[.,]", "", re.sub(r"\b1/s", "", signed(where, cell, how)))
            shown(where, body, *numbers)
        (_, _, low, high), (_, _, low2, high2) = ours
        want = "**differ**" if high < low2 or high2 < low else "agree"
        check(where + " verdict", row[3] == want, row[3], want)

    def check_claim(self, where, run, claim, row):
        for part in run.study["parts"]:
            for c in part.get("claims", []):
                if c["id"] == claim:
                    ours, interval = run.claim(part, c)
                    check(where + " text", row[0].startswith(c["text"]), row[0], c["text"])
                    if interval:
                        shown(where, row[1], ours, *interval)
                        fit = run.shape(part, c) if c.get("shape") else None
                        said, want = row[2].split(":")[0].strip("*"), verdict(part, c, interval, fit)
                        check(where + " verdict", said == want, said, want)
                    return
        check(where, False, "a claim", "none")

    def check_about(self, where, line):
        """The sentence on a run: what was measured, and the comparisons of a thing with itself."""
        name = re.match(r"- \[(.*?)\]", line).group(1)
        run, row = self.run(name), self.index[name]
        if row.get("version"):
            check(f"{where}: {name} version", f"Weir {row['version']};" in line, line, row["version"])
        if isinstance(run, dict):
            return
        repeated = isinstance(run, list)
        told = [r.aa(labels=repeated) for r in (run if repeated else [run])]
        different, all_told = sum(t[0] for t in told), sum(t[1] for t in told)
        said = re.search(r"([0-9]+) of ([0-9]+) comparisons", line)
        check(f"{where}: {name} A/A", said and (int(said[1]), int(said[2])) == (different, all_told), line, (different, all_told))
        if repeated:
            return
        c = run.counts()
        said = re.search(r"([0-9]+) trials measured in (?:([0-9]+)h)?(?:([0-9]+)m)?([0-9]+)s, ([0-9]+) void, ([0-9]+) made again, ([0-9]+) skipped", line)
        if said is None:
            check(f"{where}: {name}", False, line, c)
            return
        n = [int(g or 0) for g in said.groups()]
        check(f"{where}: {name} trials", (n[0], *n[4:]) == (c["measured"], c["void"], c["again"], c["skipped"]), line, c)
        check(f"{where}: {name} time", abs(n[1] * 3600 + n[2] * 60 + n[3] - run.took()) <= 0.501, line, run.took())


def cells(text):
    """Rows of a table, its head first."""
    rows = [[c.strip() for c in line.strip().strip("|").split("|")] for line in text.split("\n") if line.startswith("|")]
    return [r for r in rows if not all(re.fullmatch(r"-*", c) for c in r)]


def column(heads, row):
    """Cells by what they are: columns that are empty in all rows are left out."""
    out = {"what": row[0], "ours": row[1]}
    for head, cell in zip(heads[2:], row[2:]):
        kind = next((k for k in ("ratio", "lost", "n", "verdict") if head == k or head.startswith(k + " ") or head.startswith(k + ":")), "peer")
        out[kind] = cell
    return out


def check_line(where, expected, row):
    """expected: by column texts, or numbers; before those of ours, peer and ratio how they are known."""
    for kind, want in expected.items():
        body = row.get(kind, "")
        if isinstance(want, str):
            check(f"{where} {kind}", body == want, repr(body), repr(want))
            continue
        if kind in ("ours", "peer", "ratio"):
            how, *want = want
            body = signed(f"{where} {kind}", body, how)
        if kind == "peer":
            body = re.match(NUMBER, body).group(0) if re.match(NUMBER, body) else body
        if kind == "ours":
            body = re.sub(r"[^0-9.,()\s-]|(?<![0-9])[.,]", "", re.sub(r"\b1/s", "", body))
        shown(f"{where} {kind}", body, *want)
    for kind in row:
        check(f"{where} {kind}", kind in expected or row[kind] == "", repr(row[kind]), "nothing")


def judge(target, low, high):
    sign, bound = target.split()
    bound = float(bound)
    met, missed = (low >= bound, high < bound) if sign == ">=" else (high <= bound, low > bound)
    return f"{'≥' if sign == '>=' else '≤'} {bound:g}: {'met' if met else '**missed**' if missed else 'open'}"


def with_target(line, verdict, low, high):
    return "; ".join([v for v in (verdict, judge(line["target"], low, high) if "target" in line else "") if v])


def bench_line(b, line):
    """A figure of the former harness: medians of all runs, and the median and quartiles of the ratios of neighbours, above 1 where Weir is better."""
    times, ours = line.get("times", 1), np.array(b["weir_runs"])
    middle = float(np.median(ours)) * times
    out = {"what": line["what"], "ours": ["", middle], "n": str(len(ours))}
    low = high = middle
    if b.get("peer_runs") and not line.get("alone"):
        peer = np.array(b["peer_runs"])
        bigger = b["unit"] in ("Gb/s", "Mpps", "1/s")
        out["peer"] = ["", float(np.median(peer)) * times]
        if len(peer) == len(ours):
            r = ours / peer if bigger else peer / ours
            low = high = float(np.median(r))
            out["ratio"] = ["", low] + ([float(np.quantile(r, q)) for q in (0.25, 0.75)] if len(r) >= 3 else [])
        else:
            low = high = float(np.median(ours) / np.median(peer) if bigger else np.median(peer) / np.median(ours))
            out["ratio"] = ["", low]
    if (line.get("unit") or b["unit"]) in ("Gb/s", "Mpps"):
        out["lost"] = "not recorded"
    out["verdict"] = with_target(line, "", low, high)
    return out


def lab_line(run, line):
    part = run.part(line["part"])
    metric = next(m for m in part["metrics"] if m["name"] == line["metric"])
    times = line.get("times", 1)
    at = {f["name"]: line.get("at", {}).get(f["name"], f["levels"][0]) for f in part["factors"]}
    ours = run.ranges(part, at, metric["name"])
    out, sides = {"what": line["what"] + found(ours, "")}, [(at, ours)]
    if line.get("alone"):
        middle, how, interval = alone(ours)
        interval = np.array(interval) * times
        out |= {"ours": [how, middle * times, *interval], "n": str(sum(not np.isnan(a) for a, _ in ours)), "verdict": with_target(line, "", *interval)}
    else:
        other = at | (line.get("against") or {part["compare"]: part["baseline"]})
        theirs = run.ranges(part, other, metric["name"])
        sides.append((other, theirs))
        out["what"] += found(theirs, "the peer: ")
        out |= compared_line(run, part, metric, line, at, other, ours, theirs)
    if "lost" in line:
        if line["lost"].get("no"):
            out["lost"] = line["lost"]["no"]
        else:
            of = [lost(run, part, levels, line["lost"], s) for levels, s in sides]
            out["lost"] = [o[0] for o in of] + [o[1] for o in of if "stalls" in line["lost"]] + [n for o in of for n in o[2:] if any(x[2] for x in of)]
    for name in line.get("says", []):
        variants = [[levels[f["name"]] for f in part["factors"]] for levels, _ in sides]
        values = {r["conditions"][name] for r in run.records
                  if r["trial"]["part"] == part["name"] and r["trial"]["variant"] in variants and r.get("conditions", {}).get(name)}
        out["what"] += ", " + " and ".join(sorted(values))
    return out


def measured(run, line):
    """How a value, or its ratio to that of other levels, is known; then the figure, and its interval."""
    part = run.part(line["part"])
    metric = next(m for m in part["metrics"] if m["name"] == line["metric"])
    at = {f["name"]: line["at"].get(f["name"], f["levels"][0]) for f in part["factors"]}
    ours = run.ranges(part, at, metric["name"])
    if not line.get("against"):
        middle, how, interval = alone(ours)
        return how, middle, *interval
    r = ratio(ours, run.ranges(part, at | line["against"], metric["name"]), metric.get("margin") or MARGIN)
    return r["open"], r["ratio"], r["low"], r["high"]


def compared_line(run, part, metric, line, at, other, ours, theirs):
    times, compare = line.get("times", 1), part["compare"]
    r = ratio(ours, theirs, metric.get("margin") or MARGIN)
    how, middle, low, high = r["open"], r["ratio"], r["low"], r["high"]
    rest = lambda levels: {k: v for k, v in levels.items() if k != compare}
    verdict = ""
    if rest(at) == rest(other) and other[compare] == part["baseline"] and at[compare] != part["baseline"]:
        verdict = run.comparison(part, rest(at), metric)[1][at[compare]]["verdict"]
    spread = (low, high)
    if line.get("spread") == "quartiles":
        q = [a / b for (a, _), (b, _) in zip(ours, theirs) if a > 0 and b > 0]
        spread = (np.quantile(q, 0.25), np.quantile(q, 0.75))
    (mine, mine_how, _), (peer, peer_how, _) = alone(ours), alone(theirs)
    return {"ours": [mine_how, mine * times], "peer": [peer_how, peer * times], "ratio": [how, middle, *spread],
            "n": str(r["blocks"]), "verdict": with_target(line, verdict, low, high)}


def found(pairs, whose):
    """In how many blocks there is a result, and in how many the generator limits it."""
    n, none, limited = sum(not np.isnan(a) for a, _ in pairs), sum(a < b < math.inf for a, b in pairs), sum(b == math.inf for _, b in pairs)
    out = [f"found in {n - none} of {n} blocks"] * bool(none) + [f"a lower bound in {limited} of {n} blocks, limited by the generator"] * bool(limited)
    return f"; {whose}{'; '.join(out)}" if out else ""


def lost(run, part, levels, l, s):
    """Median over the valid blocks of what was lost, and of what was lost near stalls: of the steps that verified the load, or (former versions) of the last
    one. Then the void trials, and all of them."""
    variant, out, near, void, trials = ",".join(levels[f["name"]] for f in part["factors"]), [], [], 0, 0
    for b, (load, high) in enumerate(s):
        k = (part["name"], b, variant, False)
        if k not in run.cells or run.cells[k].get("skipped"):
            continue
        trials += 1
        void += bool(run.cells[k].get("void"))
        if np.isnan(load) or load == 0 < high:
            continue
        for value, to in ((l["value"], out), (l.get("stalls"), near)):
            values = run.cells[k].get("values", {})
            if l.get("step"):
                steps = [x for x in run.steps.get(k, []) if x["what"] == l["step"] and not x.get("void") and value in x["values"]]
                verified = [x["values"][value] for x in steps if abs(x["load"] - 1e6 * load) <= load]
                values = {value: max(verified)} if verified else steps[-1]["values"] if steps else {}
            if value in values:
                to.append(values[value])
    times = l.get("times", 1)
    return float(np.median(out)) * times, float(np.median(near)) * times if near else 0.0, void, trials


def agree(whose):
    """Prints what differs, and tells whether nothing does."""
    for p in problems[:50]:
        print(whose + p)
    print(f"{whose}{compared} comparisons with numpy {np.__version__} and scipy {scipy.__version__}: {len(problems)} differ")
    return bool(compared and not problems)


def main(arguments):
    global compared
    if len(arguments) == 2 and arguments[0] == "pages":
        Pages(arguments[1]).check()
        sys.exit(not agree(""))
    if len(arguments) < 3 or len(arguments) % 2 == 0 or arguments[0] != "run":
        sys.exit(__doc__)
    all_agree = True
    for path, results in zip(arguments[1::2], arguments[2::2]):
        problems.clear()
        compared = 0
        with open(results, encoding="utf-8") as f:
            check_run(path, json.load(f))
        all_agree = agree(results + ": ") and all_agree
    sys.exit(not all_agree)


if __name__ == "__main__":
    main(sys.argv[1:])
