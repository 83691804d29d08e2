"""What Grafana's dashboard asks, asked of the Prometheus that runs: its panels, and the alerts."""

import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request

from .programs import Failed
from .topology import DEPLOY, SCRAPE

# The span of a panel, at most.
SPAN = 15 * 60


class Prometheus:
    """The HTTP API of a Prometheus."""

    def __init__(self, url):
        self.url = url

    def get(self, path, **parameters):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            said = json.load(error)
        except OSError as error:
            raise Failed(f"Prometheus at {self.url}: {error}") from error
        if said["status"] != "success":
            raise Failed(f"Prometheus refuses {parameters}: {said['error']}")
        return said["data"]

    def ask(self, query):
        return self.get("query", query=query)["result"]

    def wait_scraped(self, since, seconds=60):
        """Until both replicas were scraped at a later time than this."""
        until = time.monotonic() + seconds
        while True:
            scraped = [float(one["value"][1]) for one in self.ask('timestamp(up{job="lockgate"})')]
            if len(scraped) == 2 and min(scraped) > since:
                return
            if time.monotonic() > until:
                raise Failed(f"Prometheus has not scraped both replicas within {seconds} s: {self.url}/targets")
            time.sleep(0.1)


def panels():
    """The rows of the dashboard with their panels."""
    dashboard = json.loads((DEPLOY / "grafana/lockgate.json").read_text())
    row = None
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        yield from ((row, one) for one in panel.get("panels", [])) if panel["type"] == "row" else [(row, panel)]


def variables(prometheus, **chosen):
    """The values of the dashboard's variables on this Prometheus, by the queries that fill them."""
    dashboard = json.loads((DEPLOY / "grafana/lockgate.json").read_text())
    found = {}
    for one in dashboard["templating"]["list"]:
        if one["type"] != "query":
            continue
        hit = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"])
        if not hit:
            raise Failed(f"the variable {one['name']} asks in a way that this program does not know: {one['query']['query']}")
        series = with_values(hit[1], chosen)
        found[one["name"]] = prometheus.get(f"label/{hit[2]}/values", **{"match[]": series})
    return found


def with_values(expression, chosen):
    """An expression as Grafana sends it: variables and its own interval have values."""
    # Four scrapes, as Grafana has it.
    expression = expression.replace("$__rate_interval", f"{4 * SCRAPE}s")
    expression = re.sub(r"\$(tenant|server|instance)\b", lambda hit: chosen.get(hit[1]) or ".*", expression)
    if "$" in expression:
        raise Failed(f"an unknown variable of Grafana: {expression}")
    return expression


def run(prometheus, began, **chosen):
    """Each query of each panel, with the series that had another value than 0 since `began`."""
    end = time.time()
    start = max(began, end - SPAN)
    step = max(SCRAPE, int((end - start) / 500))
    for row, panel in panels():
        for target in panel.get("targets", []):
            expression = with_values(target["expr"], chosen)
            data = prometheus.get("query_range", query=expression, start=start, end=end, step=step)
            yield row, panel, target, expression, [one for one in map(peak, data["result"]) if one[1]]


def peak(series):
    """The labels of a series and its highest value; NaN, the quotient of nothing, is none."""
    values = [float(value) for _, value in series["values"]]
    return series["metric"], max((one for one in values if math.isfinite(one)), default=0)


def legend(target, labels):
    """The name of a series in its panel."""
    name = re.sub(r"{{\s*(\w+)\s*}}", lambda hit: labels.get(hit[1], ""), target.get("legendFormat", ""))
    return " ".join(name.split()) or ", ".join(f"{key}={value}" for key, value in labels.items()) or "all"


UNITS = {"reqps": "/s", "ops": "/s", "s": "s", "percentunit": "", "bytes": "B", "Bps": "B/s", "cps": "/s", "short": ""}


def amount(value, panel):
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
    return f"{value:.3g}{UNITS.get(unit, '')}"


def alerts(prometheus, seconds=30):
    """All alerting rules, once each was evaluated."""
    until = time.monotonic() + seconds
    while True:
        groups = prometheus.get("rules", type="alert")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        if rules and all(rule["health"] != "unknown" for rule in rules):
            return rules
        if time.monotonic() > until:
            raise Failed(f"the alerts were not evaluated within {seconds} s: {prometheus.url}/alerts")
        time.sleep(0.1)
