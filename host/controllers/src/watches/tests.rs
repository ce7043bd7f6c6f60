use cofferdam_cluster::{OrphanReport, deletion_freeze::RestoreMarker};
use cofferdam_domain::{Node, Pod};

use super::*;

fn named(name: &str) -> WatchSpec {
    WatchSpec::named::<Node>(name)
}

fn summary(specs: impl IntoIterator<Item = WatchSpec>) -> Vec<(&'static str, Option<String>, bool)> {
    let union = WatchSet::union(specs);
    let spec = |spec: &WatchSpec| (spec.resource().plural, spec.scope.field_selector.clone(), spec.required);
    union.specs().iter().map(spec).collect()
}

#[test]
fn the_union_of_watches_has_one_watch_for_each_kind() {
    let all = || WatchSpec::all::<Node>();
    let node = |name: &str| Some(format!("metadata.name={name}"));
    for (case, specs, expected) in [
        ("one scope", vec![named("a"), named("a")], vec![("nodes", node("a"), true)]),
        ("unscoped absorbs scoped", vec![named("a"), all()], vec![("nodes", None, true)]),
        ("scoped is absorbed by unscoped", vec![all(), named("a")], vec![("nodes", None, true)]),
        ("two scopes", vec![named("a"), named("b")], vec![("nodes", None, true)]),
        (
            "two kinds",
            vec![named("a"), WatchSpec::all::<Pod>()],
            vec![("nodes", node("a"), true), ("pods", None, true)],
        ),
        ("optional", vec![all().optional()], vec![("nodes", None, false)]),
        ("required by one", vec![all().optional(), all()], vec![("nodes", None, true)]),
        ("optional for one", vec![all(), all().optional()], vec![("nodes", None, true)]),
    ] {
        assert_eq!(summary(specs), expected, "{case}");
    }
}

#[test]
fn kinds_of_the_same_resource_are_watched_separately() {
    let scope = |name: &str| Scope { namespace: Some(name.to_owned()), ..Scope::default() };
    let union = WatchSet::union([
        WatchSpec::scoped::<RestoreMarker>(scope("a")),
        WatchSpec::scoped::<OrphanReport>(scope("b")).optional(),
    ]);
    let specs: Vec<_> = union.specs().iter().map(|spec| (spec.resource().plural, spec.required)).collect();
    assert_eq!(specs, [("configmaps", true), ("configmaps", false)]);
}
