use serde_json::{Value, json};

use super::{Applied, ApplyError, Endpoint, Managed, apply, describe, update};
use crate::descriptors::Kind;
use crate::schema;
use crate::write::Part;

const NOW: &str = "2026-01-01T00:00:00Z";

fn main_of(kind: Kind) -> Endpoint {
    Endpoint { kind, part: Part::Main }
}

/// An object as it is stored, and who owns what.
struct State {
    kind: Kind,
    value: Value,
    managed: Managed,
}

impl State {
    fn new(kind: Kind) -> Self {
        Self { kind, value: schema::empty(kind).clone(), managed: Managed::default() }
    }

    fn updated(mut self, manager: &str, mut value: Value) -> Self {
        schema::fill(self.kind, &mut value);
        self.managed = update(main_of(self.kind), &self.managed, (&self.value, &value), manager, NOW);
        self.value = value;
        self
    }

    fn apply(&self, manager: &str, force: bool, config: &Value) -> Result<Applied, ApplyError> {
        apply(main_of(self.kind), &self.managed, (&self.value, config), (manager, force), NOW)
    }

    fn applied(mut self, manager: &str, config: Value) -> Self {
        self.take(self.apply(manager, false, &config).unwrap());
        self
    }

    fn forced(mut self, manager: &str, config: Value) -> Self {
        self.take(self.apply(manager, true, &config).unwrap());
        self
    }

    fn take(&mut self, applied: Applied) {
        self.value = applied.value;
        schema::fill(self.kind, &mut self.value);
        self.managed = applied.managed;
    }

    fn conflicts(&self, manager: &str, config: Value) -> String {
        match self.apply(manager, false, &config) {
            Err(ApplyError::Conflicts(conflicts)) => describe(&conflicts),
            other => panic!("conflicts were expected, not {other:?}"),
        }
    }

    fn refused(&self, config: Value) -> String {
        match self.apply("a", false, &config) {
            Err(ApplyError::Malformed(why)) => why,
            other => panic!("a refusal was expected, not {other:?}"),
        }
    }

    /// What each manager owns, in the order of the list.
    fn owned(&self) -> Vec<(String, Value)> {
        let list = self.managed.to_value();
        let entry = |one: &Value| (one["manager"].as_str().unwrap().to_owned(), one["fieldsV1"].clone());
        list.as_array().unwrap().iter().map(entry).collect()
    }
}

fn owners(list: &[(&str, Value)]) -> Vec<(String, Value)> {
    list.iter().map(|(manager, fields)| ((*manager).to_owned(), fields.clone())).collect()
}

fn map(data: Value) -> Value {
    json!({"metadata": {"name": "m"}, "data": data})
}

#[test]
fn writers_own_what_they_change() {
    let state = State::new(Kind::ConfigMap)
        .updated("one", map(json!({"a": "1", "b": "1"})))
        .updated("two", map(json!({"a": "2", "b": "1", "c": "1"})))
        .updated("three", map(json!({"a": "2", "c": "1"})));
    assert_eq!(
        state.owned(),
        owners(&[("one", json!({"f:data": {}})), ("two", json!({"f:data": {"f:a": {}, "f:c": {}}})),])
    );
}

#[test]
fn members_of_lists_are_owned_by_their_keys() {
    let node = |drivers: Value| json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}});
    let one = json!({"name": "one", "nodeID": "1"});
    let two = json!({"name": "two", "nodeID": "2", "allocatable": {"count": 3}});
    let state =
        State::new(Kind::CsiNode).applied("one", node(json!([one]))).applied("two", node(json!([two])));
    let own = |extra: Value| {
        let mut fields = json!({".": {}, "f:name": {}, "f:nodeID": {}});
        fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        fields
    };
    assert_eq!(
        state.owned(),
        owners(&[
            ("one", json!({"f:spec": {"f:drivers": {"k:{\"name\":\"one\"}": own(json!({}))}}})),
            (
                "two",
                json!({"f:spec": {"f:drivers": {"k:{\"name\":\"two\"}": own(json!({"f:allocatable": {"f:count": {}}}))}}})
            ),
        ])
    );
    assert_eq!(state.value["spec"]["drivers"].as_array().unwrap().len(), 2);
    let state = state.applied("two", node(json!([])));
    assert_eq!(state.value["spec"]["drivers"][0]["name"], "one");
    assert_eq!(state.value["spec"]["drivers"].as_array().unwrap().len(), 1);
}

#[test]
fn what_a_manager_no_longer_applies_goes_unless_somebody_else_owns_it() {
    let state = State::new(Kind::ConfigMap)
        .applied("one", map(json!({"a": "1", "b": "1", "c": "1"})))
        .applied("two", map(json!({"b": "1"})))
        .applied("one", map(json!({"c": "1"})));
    assert_eq!(state.value["data"], json!({"b": "1", "c": "1"}));
    let state = state.applied("two", map(json!({})));
    assert_eq!(state.value["data"], json!({"c": "1"}));
    let state = state.applied("one", json!({"metadata": {"name": "m"}}));
    assert_eq!(state.value.get("data"), None);
    // Who applied an empty map owns it still.
    assert_eq!(state.owned(), owners(&[("two", json!({"f:data": {}}))]));
}

#[test]
fn conflicts_name_the_manager_and_the_field() {
    let state = State::new(Kind::ConfigMap).applied("one", map(json!({"a": "1", "b": "1"})));
    assert_eq!(
        state.conflicts("two", map(json!({"a": "2"}))),
        "Apply failed with 1 conflict: conflict with \"one\": .data.a"
    );
    let state = state.updated("editor", map(json!({"a": "3", "b": "1"})));
    assert_eq!(
        state.conflicts("two", map(json!({"a": "2", "b": "2"}))),
        "Apply failed with 2 conflicts: conflicts with \"editor\" using v1:\n- .data.a\nconflicts with \"one\":\n- .data.b"
    );
    let state = state.forced("two", map(json!({"a": "2", "b": "2"})));
    assert_eq!(state.owned(), owners(&[("two", json!({"f:data": {"f:a": {}, "f:b": {}}}))]));
    // The same value is shared, not fought for.
    let state = state.applied("one", map(json!({"a": "2"})));
    assert_eq!(state.owned().len(), 2);
}

#[test]
fn an_object_that_nobody_owns_belonged_to_somebody_before() {
    let mut state = State::new(Kind::ConfigMap).updated("one", map(json!({"a": "1"})));
    state.managed = Managed::default();
    assert_eq!(
        state.conflicts("two", map(json!({"a": "2"}))),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a"
    );
}

#[test]
fn applying_the_same_again_keeps_the_time() {
    let state = State::new(Kind::ConfigMap).applied("one", map(json!({"a": "1"})));
    let config = map(json!({"a": "1"}));
    let again = apply(
        main_of(Kind::ConfigMap),
        &state.managed,
        (&state.value, &config),
        ("one", false),
        "2027-01-01T00:00:00Z",
    );
    let again = again.unwrap();
    assert!(again.managed.same_but_times(&state.managed));
    assert_eq!(again.managed.to_value(), state.managed.to_value());
}

#[test]
fn malformed_configurations_are_named() {
    let claim = State::new(Kind::PersistentVolumeClaim);
    for (config, expected) in [
        (json!({"spec": {"color": 1}}), ".spec.color: field not declared in schema"),
        (json!({"spec": "x"}), ".spec: expected map, got &{x}"),
        (json!({"spec": {"accessModes": "x"}}), ".spec.accessModes: expected list, got &{x}"),
        (
            json!({"spec": {"volumeName": 5}}),
            ".spec.volumeName: expected string, got &value.valueUnstructured{Value:5}",
        ),
        (
            json!({"metadata": {"generation": "x", "finalizers": ["a", "a"]}}),
            "errors:\n  .metadata.finalizers: duplicate entries for key [=\"a\"]\n  .metadata.generation: expected numeric (int or float), got string",
        ),
    ] {
        assert_eq!(claim.refused(config), expected);
    }
}

#[test]
fn the_main_endpoint_does_not_own_the_status() {
    let value = json!({"metadata": {"name": "c"}, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
    let state = State::new(Kind::PersistentVolumeClaim).updated("one", value.clone());
    assert_eq!(state.owned(), owners(&[("one", json!({"f:spec": {"f:volumeName": {}}}))]));
    let endpoint = Endpoint { kind: Kind::PersistentVolumeClaim, part: Part::Status };
    let empty = schema::empty(Kind::PersistentVolumeClaim);
    let managed = update(endpoint, &Managed::default(), (empty, &value), "two", NOW);
    let list = managed.to_value();
    assert_eq!(list[0]["subresource"], "status");
    assert_eq!(list[0]["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
}

#[test]
fn lists_take_the_order_of_the_configuration() {
    let pod = |names: &[&str]| {
        let containers: Vec<Value> = names.iter().map(|name| json!({"name": name, "image": "i"})).collect();
        json!({"metadata": {"name": "p"}, "spec": {"containers": containers}})
    };
    let names = |state: &State| -> Vec<String> {
        let list = state.value["spec"]["containers"].as_array().unwrap();
        list.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    for (live, config, expected) in [
        (&["a", "b"][..], &["b", "a"][..], &["b", "a"][..]),
        (&["a", "x", "b"], &["b", "a"], &["x", "b", "a"]),
        (&["a", "b"], &["c"], &["a", "b", "c"]),
        (&["a", "b", "c"], &["c", "d", "a"], &["b", "c", "d", "a"]),
    ] {
        let state = State::new(Kind::Pod).updated("one", pod(live)).applied("two", pod(config));
        assert_eq!(names(&state), expected, "{live:?} {config:?}");
    }
}

#[test]
fn many_updaters_become_one_entry() {
    let mut state = State::new(Kind::ConfigMap);
    for index in 0..12 {
        state = state.updated(
            &format!("m{index:02}"),
            map(json!({ "a": index.to_string() , format!("k{index}"): "1"})),
        );
    }
    // Each one lost what the next one dropped, so only the last owns anything.
    assert_eq!(state.owned().len(), 2);
    let mut data = serde_json::Map::new();
    let mut state = State::new(Kind::ConfigMap);
    for index in 0..12 {
        data.insert(format!("k{index:02}"), json!("1"));
        state = state.updated(&format!("m{index:02}"), map(Value::Object(data.clone())));
    }
    let owned = state.owned();
    assert_eq!(owned.len(), 10);
    assert_eq!(owned[0].0, "ancient-changes");
    assert_eq!(owned[0].1, json!({"f:data": {".": {}, "f:k00": {}, "f:k01": {}, "f:k02": {}}}));
}

#[test]
fn managed_fields_survive_a_round_trip() {
    let state = State::new(Kind::CsiNode).applied(
        "one",
        json!({"metadata": {"name": "n", "finalizers": ["x/y"]}, "spec": {"drivers": [{"name": "d", "nodeID": "1"}]}}),
    );
    let list = state.managed.to_value();
    let again = Managed::from_value(&list).unwrap();
    assert!(again.same_but_times(&state.managed));
    assert_eq!(again.to_value(), list);
    assert!(Managed::from_value(&json!([{"operation": "Guess"}])).is_none());
    assert!(Managed::is_reset(&json!([])) && Managed::is_reset(&json!([{}])) && !Managed::is_reset(&list));
}
