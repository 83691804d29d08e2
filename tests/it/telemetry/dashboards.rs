//! Grafana's dashboard and Prometheus's alerts: every series and label that they name exists.

use std::collections::{BTreeMap, BTreeSet};

use promql_parser::{
    label::MatchOp,
    parser::{
        self, AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, MatrixSelector, ParenExpr,
        SubqueryExpr, UnaryExpr, VectorSelector,
    },
};
use serde_json::{Value, json};

use crate::{
    auth::external_tokens::bearer,
    support::{
        harness::{NEWEST, Session, package, until},
        oauth_client::{App, gateway},
    },
};

/// Labels that Prometheus adds, and the one of all series beyond the limit of an instrument.
const ADDED: [&str; 4] = ["instance", "job", "le", "otel_metric_overflow"];

/// Series that appear with an event that this test does not cause: a hop, a limit that is reached,
/// and a server whose sandbox is not enforced here. `up` is Prometheus's own.
const ELSEWHERE: [&str; 4] = [
    "lockgate_hop_duration_seconds",
    "lockgate_limited_total",
    "lockgate_sandbox_unenforced",
    "up",
];

/// What an expression asks for: names of series, each with its labels and their wanted values.
#[derive(Debug, Default)]
struct Asked {
    series: BTreeSet<String>,
    labels: BTreeMap<(String, String), BTreeSet<String>>,
    grouped: BTreeSet<String>,
}

impl Asked {
    fn of(text: &str) -> Self {
        let text = text.replace("$__rate_interval", "5m");
        let mut asked = Self::default();
        asked.read(&parser::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}")));
        asked
    }

    fn read(&mut self, expression: &Expr) {
        match expression {
            Expr::Aggregate(AggregateExpr { expr, modifier, .. }) => {
                if let Some(LabelModifier::Include(labels)) = modifier {
                    self.grouped.extend(labels.labels.iter().cloned());
                }
                self.read(expr);
            }
            Expr::Binary(BinaryExpr { lhs, rhs, .. }) => {
                self.read(lhs);
                self.read(rhs);
            }
            Expr::Call(Call { args, .. }) => args.args.iter().for_each(|one| self.read(one)),
            Expr::MatrixSelector(MatrixSelector { vs, .. }) | Expr::VectorSelector(vs) => {
                self.select(vs);
            }
            Expr::Paren(ParenExpr { expr })
            | Expr::Unary(UnaryExpr { expr })
            | Expr::Subquery(SubqueryExpr { expr, .. }) => self.read(expr),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
        }
    }

    fn select(&mut self, selector: &VectorSelector) {
        let name = selector.name.clone().expect("a name of a series");
        for matcher in &selector.matchers.matchers {
            let key = (name.clone(), matcher.name.clone());
            let values = self.labels.entry(key).or_default();
            let is_exact = !matches!(matcher.op, MatchOp::NotEqual | MatchOp::NotRe(_));
            if is_exact && !matcher.value.contains('$') {
                values.extend(matcher.value.split('|').map(str::to_owned));
            }
        }
        self.series.insert(name);
    }
}

/// The expressions of the dashboard and of the alerts.
fn expressions() -> Vec<String> {
    let deploy = package().join("deploy");
    let read = |file: &str| std::fs::read_to_string(deploy.join(file)).unwrap();
    let dashboard: Value = serde_json::from_str(&read("grafana/lockgate.json")).unwrap();
    let alerts: Value = serde_saphyr::from_str(&read("prometheus/alerts.yaml")).unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let panels = list(&dashboard["panels"]);
    let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
    let groups = list(&alerts["groups"]);
    let rules = groups.iter().flat_map(|group| list(&group["rules"]));
    let all = targets.chain(rules);
    let all: Vec<String> = all
        .map(|one| one["expr"].as_str().expect("an expression").to_owned())
        .collect();
    assert!(all.len() > 40, "{}", all.len());
    all
}

/// The labels and their fixed values of each metric, by the table of the documentation, which a unit
/// test holds against the source.
fn documented() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let page = std::fs::read_to_string(package().join("docs/operations.md")).unwrap();
    let mut found = BTreeMap::new();
    for row in page.lines() {
        let Some((name, help)) = row
            .strip_prefix("| `")
            .and_then(|row| row.split_once("` | "))
        else {
            continue;
        };
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        if !["lockgate_", "mcp_", "db_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            continue;
        }
        let labels = labels
            .trim_end_matches('}')
            .split(',')
            .filter(|one| !one.is_empty());
        let mut known: BTreeMap<String, BTreeSet<String>> = labels
            .map(|label| (label.to_owned(), BTreeSet::new()))
            .collect();
        for part in help.split("; `").skip(1) {
            let (label, values) = part.split_once("`: ").unwrap();
            let values = values.split('`').skip(1).step_by(2).map(str::to_owned);
            known.get_mut(label).unwrap().extend(values);
        }
        found.insert(name.to_owned(), known);
    }
    found
}

/// The name of the metric that a series belongs to.
fn metric(series: &str) -> &str {
    let parts = ["_bucket", "_sum", "_count"];
    let found = parts.iter().find_map(|part| series.strip_suffix(part));
    found
        .filter(|name| name.ends_with("_seconds"))
        .unwrap_or(series)
}

#[test]
fn dashboards_and_alerts_name_documented_metrics_and_labels() {
    let known = documented();
    for expression in expressions() {
        let asked = Asked::of(&expression);
        let mut labels: BTreeSet<&str> = ADDED.into();
        for series in asked.series.iter().filter(|series| *series != "up") {
            let found = known.get(metric(series));
            let found = found.unwrap_or_else(|| panic!("{series} in {expression}"));
            labels.extend(found.keys().map(String::as_str));
        }
        for ((series, label), values) in &asked.labels {
            assert!(labels.contains(&**label), "{label} in {expression}");
            let fixed = known.get(metric(series)).and_then(|known| known.get(label));
            for value in values {
                let is_known = fixed.is_none_or(|fixed| fixed.is_empty() || fixed.contains(value));
                assert!(is_known, "{label}={value} in {expression}");
            }
        }
        for label in &asked.grouped {
            assert!(labels.contains(&**label), "by {label} in {expression}");
        }
    }
}

#[tokio::test]
async fn dashboards_and_alerts_find_their_series_in_a_gateway() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let token = app.tokens().await.text("access_token");
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let mut session = Session::at(bearer(&token), url);
    session.initialize(NEWEST).await;
    session.text("echo", json!({"text": "x"})).await;
    session.delete().await;
    // A session is counted when its tasks have ended, behind the response.
    until("the end of the session", async || {
        let text = gateway.ops("/metrics").await;
        text.contains("mcp_server_session_duration_seconds_count{")
    })
    .await;
    let text = gateway.ops("/metrics").await;
    for expression in expressions() {
        for series in Asked::of(&expression).series {
            let is_there = text.lines().any(|line| {
                let rest = line.strip_prefix(&*series);
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            });
            let is_elsewhere = ELSEWHERE.contains(&metric(&series));
            assert!(
                is_there || is_elsewhere,
                "{series} of {expression} in {text}"
            );
        }
    }
}
