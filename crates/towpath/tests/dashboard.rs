//! The dashboard's queries and the alert rules, on a real Prometheus that scrapes a real server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::{TestFolder, free_port, get_from, wait_until};

/// Queries without a result on a server that has no such part.
const WITHOUT_DATA: [&str; 1] = ["towpath_certificate_expiry_timestamp_seconds"];

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

/// A Prometheus of Debian's package, which ends with the test.
struct Prometheus {
    child: Child,
    base: String,
}

impl Prometheus {
    fn start(dir: &TestFolder, target: &str) -> Self {
        let rules = packaging("prometheus/towpath.rules.yml").canonicalize().unwrap();
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\nscrape_configs:\n\
             - job_name: towpath\n  static_configs: [{{ targets: ['{target}'] }}]\n",
            rules.display()
        );
        dir.write("prometheus.yml", config.as_bytes());
        let address = format!("127.0.0.1:{}", free_port());
        let log = std::fs::File::create(dir.path("prometheus.log")).unwrap();
        let child = Command::new("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(dir.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("`cargo xtask setup` installs Prometheus");
        Self { child, base: format!("http://{address}") }
    }

    fn query(&self, expression: &str) -> Value {
        let encoded: String = url::form_urlencoded::byte_serialize(expression.as_bytes()).collect();
        self.api(&format!("query?query={encoded}"))
    }

    fn api(&self, path: &str) -> Value {
        let url = format!("{}/api/v1/{path}", self.base);
        // Prometheus sends long answers in chunks.
        let answer = Command::new("curl").args(["--silent", "--max-time", "20", &url]).output().unwrap();
        serde_json::from_slice(&answer.stdout).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every expression of the dashboard, with its variables filled in.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let fill = |text: &str| text.replace("$instance", ".*").replace("$__rate_interval", "1m");
    targets.map(|target| fill(target["expr"].as_str().unwrap())).collect()
}

#[test]
fn every_query_of_the_dashboard_has_an_answer() {
    let config = "[[feed]]\nid = 'news'\n[feed.source]\nurl = 'news.json'\nevery = '1s'\n[[feed]]\nid = 'broken'\n\
        [feed.source]\nurl = 'none.json'\nevery = '1s'\n[[feed]]\nid = 'own'\n\
        [[sink]]\nname = 'copy'\nfeeds = ['own']\ninto = 'sqlite:copy.db'\n\
        [alerts]\nsource_failing = '1s'\nwait = 0\nfeed = true\n";
    let dir = TestFolder::new(config);
    dir.write("news.json", br#"{"version":"https://jsonfeed.org/version/1.1","items":[{"id":"1"}]}"#);
    let server = dir.serve();
    let prometheus = Prometheus::start(&dir, server.base.strip_prefix("http://").unwrap());
    let mut number = 0;
    // Rates need counters that move between scrapes.
    wait_until("it was scraped several times", || {
        number += 1;
        server.ask("PUT", &format!("/feeds/own/items/{number}"), &[], b"x");
        get_from(&server.base, "/feeds/own", &[]);
        let scrapes = prometheus.query("count_over_time(towpath_alerts{kind=\"source_failing\"}[1m])");
        scrapes["data"]["result"][0]["value"][1]
            .as_str()
            .is_some_and(|count| count.parse::<f64>().unwrap() >= 4.0)
    });
    let dashboard: Value =
        serde_json::from_slice(&std::fs::read(packaging("grafana/towpath.json")).unwrap()).unwrap();
    let queries = queries(&dashboard);
    assert!(queries.len() > 25, "{queries:?}");
    for query in queries {
        let answer = prometheus.query(&query);
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let count = answer["data"]["result"].as_array().unwrap().len();
        let is_expected = !WITHOUT_DATA.iter().any(|name| query.contains(name));
        assert_eq!(count > 0, is_expected, "{query}: {answer}");
    }
    let mut rules = Vec::new();
    wait_until("all rules were evaluated", || {
        let groups = prometheus.api("rules");
        rules = groups["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown")
    });
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}
