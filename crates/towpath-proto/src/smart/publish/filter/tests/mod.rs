//! Filters and filtered views.

mod pulls;

use super::*;
use crate::item::Author;
use crate::smart::publish::testing::change;

fn no_risk(_: &Item) -> f64 {
    0.0
}

fn tagged(seq: Seq, id: &str, tags: &[&str]) -> Change {
    let mut change = change(seq, id, i64::try_from(seq).unwrap());
    change.item.tags = tags.iter().map(|t| (*t).to_owned()).collect();
    change
}

#[test]
fn every_condition_must_be_met() {
    let filter: Filter = toml::from_str(
        "tags = ['Rust']\nwithout_tags = ['spam']\ntext = 'TOW'\nauthor = 'Ann'\nmax_risk = 0.4",
    )
    .unwrap();
    let mut item = Item {
        tags: vec!["rust".into()],
        summary: Some("the towpath".into()),
        authors: vec![Author::named("Bob"), Author::named("ann")],
        ..Item::new("a")
    };
    assert!(filter.matches(&item, &no_risk));
    assert!(!filter.matches(&item, &|_| 0.5));
    item.tags.push("Spam".into());
    assert!(!filter.matches(&item, &no_risk));
    item.tags = vec!["go".into()];
    assert!(!filter.matches(&item, &no_risk));
    assert!(Filter::default().matches(&item, &|_| panic!("the risk is not needed")));
    // An unknown condition is an error, and not a filter that hides nothing.
    assert!(toml::from_str::<Filter>("tag = ['x']").is_err());
}

/// As Abstract: feeds do not expire items, and items are never truly deleted.
#[test]
fn shown_items_stay_and_hidden_items_stay_hidden() {
    let filter = Filter { tags: vec!["x".into()], ..Filter::default() };
    let mut view = FilterView::new(filter, Box::new(no_risk));
    let mut gone = tagged(4, "a", &[]);
    gone.op = Op::Delete;
    let mut never = tagged(6, "b", &[]);
    never.op = Op::Delete;
    let log = [tagged(1, "a", &["x"]), tagged(2, "b", &["y"]), tagged(3, "a", &["y"])];
    view.apply(&log);
    // Twice: changes that were applied before are skipped.
    view.apply(&log);
    assert_eq!((view.total(), view.applied()), (1, 3));
    assert_eq!(view.show(log[1].clone()), None);
    let shown = view.show(log[2].clone()).unwrap();
    assert_eq!((shown.op, shown.item.tags.len(), shown.seq), (Op::Delete, 0, 3));
    view.apply(&[gone.clone(), never.clone()]);
    assert_eq!(view.show(gone.clone()), Some(gone));
    assert_eq!(view.show(never), None);
    assert_eq!(view.total(), 1);
}
