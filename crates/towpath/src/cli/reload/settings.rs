//! Settings that changed in the file and that the running server cannot take over.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::config::Config;

/// Keys of `[server]` that are taken over.
const RELOADED: [&str; 1] = ["tokens"];

/// Returns the settings that differ, without those of feeds and tokens.
pub(super) fn changed_settings(old: &Config, new: &Config) -> Vec<String> {
    let mut changed = Vec::new();
    if old.server != new.server {
        let fields = changed_fields(&old.server, &new.server);
        let mut named: Vec<_> =
            fields.into_iter().filter(|field| !RELOADED.contains(&field.as_str())).collect();
        // Secrets look alike.
        if old.server.cluster != new.server.cluster && !named.iter().any(|field| field == "cluster") {
            named.push("cluster".to_owned());
        }
        changed.extend(named.into_iter().map(|field| format!("server.{field}")));
    }
    for (name, is_equal) in [
        ("[cluster]", old.cluster == new.cluster),
        ("[hub]", old.hub == new.hub),
        ("[xmpp]", old.xmpp == new.xmpp),
        ("[export]", old.export == new.export),
        ("[risk]", old.risk == new.risk),
        ("[[sink]]", old.sinks == new.sinks),
        ("[alerts]", old.alerts == new.alerts),
    ] {
        if !is_equal {
            changed.push(name.to_owned());
        }
    }
    changed
}

/// Returns the fields in which two values of a type differ. By their debug form, so that no field is forgotten.
fn changed_fields(old: &impl Debug, new: &impl Debug) -> Vec<String> {
    let (old, new) = (fields(old), fields(new));
    new.iter().filter(|(name, value)| old.get(*name) != Some(value)).map(|(name, _)| name.clone()).collect()
}

fn fields(value: &impl Debug) -> BTreeMap<String, String> {
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    let mut current = String::new();
    for line in format!("{value:#?}").lines() {
        let is_field = line.starts_with("    ") && !line.starts_with("     ");
        if let Some((name, _)) = line.trim_start().split_once(": ").filter(|_| is_field) {
            name.clone_into(&mut current);
        }
        fields.entry(current.clone()).or_default().push_str(line);
    }
    fields.remove("");
    fields
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn changed_keys_are_named() {
        let config = |text: &str| Config::parse(text, Path::new("towpath.toml")).unwrap();
        let old = config("[server]\nwaiters = 5\ntokens = ['a']\ncluster = 'nats://a:hush@h:1'\n");
        let same = config(
            "[server]\nwaiters = 5\ntokens = ['b']\ncluster = 'nats://a:hush@h:1'\n[[feed]]\nid = 'aa'\n",
        );
        assert!(changed_settings(&old, &same).is_empty());
        let new = config(
            "[server]\nwaiters = 6\nlisten = '[::1]:1'\ncluster = 'nats://b:hush@h:1'\n[server.rate_limit]\nburst = 500\n\
             [hub]\nconnections = 1\n",
        );
        let mut changed = changed_settings(&old, &new);
        changed.sort();
        assert_eq!(
            changed,
            ["[hub]", "server.cluster", "server.listen", "server.rate_limit", "server.waiters"]
        );
    }
}
