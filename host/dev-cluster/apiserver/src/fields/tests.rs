use serde_json::{Value, json};

use super::{ApplyError, ApplyResult, Endpoint, ManagedFields, apply, describe, update};
use crate::descriptors::{ResourceKind, Subresource};
use crate::schema;

const NOW: &str = "2026-01-01T00:00:00Z";

fn main_endpoint(kind: ResourceKind) -> Endpoint {
    Endpoint { kind, subresource: Subresource::Main }
}

/// A stored object with its managed fields.
struct TestObject {
    kind: ResourceKind,
    value: Value,
    managed_fields: ManagedFields,
}

impl TestObject {
    fn new(kind: ResourceKind) -> Self {
        Self { kind, value: schema::empty(kind).clone(), managed_fields: ManagedFields::default() }
    }

    fn updated(mut self, manager: &str, mut value: Value) -> Self {
        schema::fill(self.kind, &mut value);
        self.managed_fields =
            update(main_endpoint(self.kind), &self.managed_fields, (&self.value, &value), manager, NOW);
        self.value = value;
        self
    }

    fn apply(&self, manager: &str, force: bool, config: &Value) -> Result<ApplyResult, ApplyError> {
        apply(main_endpoint(self.kind), &self.managed_fields, (&self.value, config), (manager, force), NOW)
    }

    fn applied(mut self, manager: &str, config: Value) -> Self {
        self.store_result(self.apply(manager, false, &config).unwrap());
        self
    }

    fn forced(mut self, manager: &str, config: Value) -> Self {
        self.store_result(self.apply(manager, true, &config).unwrap());
        self
    }

    fn store_result(&mut self, applied: ApplyResult) {
        self.value = applied.value;
        schema::fill(self.kind, &mut self.value);
        self.managed_fields = applied.managed;
    }

    fn conflicts(&self, manager: &str, config: Value) -> String {
        match self.apply(manager, false, &config) {
            Err(ApplyError::Conflicts(conflicts)) => describe(&conflicts),
            other => panic!("conflicts were expected, not {other:?}"),
        }
    }

    fn malformed_reason(&self, config: Value) -> String {
        match self.apply("a", false, &config) {
            Err(ApplyError::Malformed(errors)) => errors.to_string(),
            other => panic!("a refusal was expected, not {other:?}"),
        }
    }

    /// The fields of each manager, in the order of the list.
    fn ownership(&self) -> Vec<(String, Value)> {
        let list = self.managed_fields.to_value();
        let entry = |one: &Value| (one["manager"].as_str().unwrap().to_owned(), one["fieldsV1"].clone());
        list.as_array().unwrap().iter().map(entry).collect()
    }
}

fn owners(list: &[(&str, Value)]) -> Vec<(String, Value)> {
    list.iter().map(|(manager, fields)| ((*manager).to_owned(), fields.clone())).collect()
}

fn config_map(data: Value) -> Value {
    json!({"metadata": {"name": "m"}, "data": data})
}

#[test]
fn managers_own_the_fields_they_change() {
    let state = TestObject::new(ResourceKind::ConfigMap)
        .updated("one", config_map(json!({"a": "1", "b": "1"})))
        .updated("two", config_map(json!({"a": "2", "b": "1", "c": "1"})))
        .updated("three", config_map(json!({"a": "2", "c": "1"})));
    assert_eq!(
        state.ownership(),
        owners(&[("one", json!({"f:data": {}})), ("two", json!({"f:data": {"f:a": {}, "f:c": {}}})),])
    );
}

#[test]
fn list_items_are_owned_by_their_keys() {
    let node = |drivers: Value| json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}});
    let one = json!({"name": "one", "nodeID": "1"});
    let two = json!({"name": "two", "nodeID": "2", "allocatable": {"count": 3}});
    let state = TestObject::new(ResourceKind::CsiNode)
        .applied("one", node(json!([one])))
        .applied("two", node(json!([two])));
    let own = |extra: Value| {
        let mut fields = json!({".": {}, "f:name": {}, "f:nodeID": {}});
        fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        fields
    };
    assert_eq!(
        state.ownership(),
        owners(&[
            ("one", json!({"f:spec": {"f:drivers": {"k:{\"name\":\"one\"}": own(json!({}))}}})),
            (
                "two",
                json!({"f:spec": {"f:drivers": {
                    "k:{\"name\":\"two\"}": own(json!({"f:allocatable": {"f:count": {}}})),
                }}})
            ),
        ])
    );
    assert_eq!(state.value["spec"]["drivers"].as_array().unwrap().len(), 2);
    let state = state.applied("two", node(json!([])));
    assert_eq!(state.value["spec"]["drivers"][0]["name"], "one");
    assert_eq!(state.value["spec"]["drivers"].as_array().unwrap().len(), 1);
}

#[test]
fn fields_no_longer_applied_are_removed_unless_another_manager_owns_them() {
    let state = TestObject::new(ResourceKind::ConfigMap)
        .applied("one", config_map(json!({"a": "1", "b": "1", "c": "1"})))
        .applied("two", config_map(json!({"b": "1"})))
        .applied("one", config_map(json!({"c": "1"})));
    assert_eq!(state.value["data"], json!({"b": "1", "c": "1"}));
    let state = state.applied("two", config_map(json!({})));
    assert_eq!(state.value["data"], json!({"c": "1"}));
    let state = state.applied("one", json!({"metadata": {"name": "m"}}));
    assert_eq!(state.value.get("data"), None);
    // The applier of an empty map still owns it.
    assert_eq!(state.ownership(), owners(&[("two", json!({"f:data": {}}))]));
}

#[test]
fn conflicts_name_the_manager_and_the_field() {
    let state =
        TestObject::new(ResourceKind::ConfigMap).applied("one", config_map(json!({"a": "1", "b": "1"})));
    assert_eq!(
        state.conflicts("two", config_map(json!({"a": "2"}))),
        "Apply failed with 1 conflict: conflict with \"one\": .data.a"
    );
    let state = state.updated("editor", config_map(json!({"a": "3", "b": "1"})));
    assert_eq!(
        state.conflicts("two", config_map(json!({"a": "2", "b": "2"}))),
        "Apply failed with 2 conflicts: conflicts with \"editor\" using v1:\n- .data.a\nconflicts with \
         \"one\":\n- .data.b"
    );
    let state = state.forced("two", config_map(json!({"a": "2", "b": "2"})));
    assert_eq!(state.ownership(), owners(&[("two", json!({"f:data": {"f:a": {}, "f:b": {}}}))]));
    // Equal values are shared without a conflict.
    let state = state.applied("one", config_map(json!({"a": "2"})));
    assert_eq!(state.ownership().len(), 2);
}

#[test]
fn first_apply_creates_a_before_first_apply_manager() {
    let mut state = TestObject::new(ResourceKind::ConfigMap).updated("one", config_map(json!({"a": "1"})));
    state.managed_fields = ManagedFields::default();
    assert_eq!(
        state.conflicts("two", config_map(json!({"a": "2"}))),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a"
    );
}

#[test]
fn reapplying_the_same_configuration_keeps_the_time() {
    let state = TestObject::new(ResourceKind::ConfigMap).applied("one", config_map(json!({"a": "1"})));
    let config = config_map(json!({"a": "1"}));
    let again = apply(
        main_endpoint(ResourceKind::ConfigMap),
        &state.managed_fields,
        (&state.value, &config),
        ("one", false),
        "2027-01-01T00:00:00Z",
    );
    let again = again.unwrap();
    assert!(again.managed.is_equal_ignoring_times(&state.managed_fields));
    assert_eq!(again.managed.to_value(), state.managed_fields.to_value());
}

#[test]
fn malformed_configurations_are_rejected_with_the_field_path() {
    let claim = TestObject::new(ResourceKind::PersistentVolumeClaim);
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
            "errors:\n  .metadata.finalizers: duplicate entries for key [=\"a\"]\n  .metadata.generation: \
             expected numeric (int or float), got string",
        ),
    ] {
        assert_eq!(claim.malformed_reason(config), expected);
    }
}

#[test]
fn the_main_endpoint_does_not_own_the_status() {
    let value = json!({"metadata": {"name": "c"}, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
    let state = TestObject::new(ResourceKind::PersistentVolumeClaim).updated("one", value.clone());
    assert_eq!(state.ownership(), owners(&[("one", json!({"f:spec": {"f:volumeName": {}}}))]));
    let endpoint = Endpoint { kind: ResourceKind::PersistentVolumeClaim, subresource: Subresource::Status };
    let empty = schema::empty(ResourceKind::PersistentVolumeClaim);
    let managed = update(endpoint, &ManagedFields::default(), (empty, &value), "two", NOW);
    let list = managed.to_value();
    assert_eq!(list[0]["subresource"], "status");
    assert_eq!(list[0]["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
}

#[test]
fn applied_lists_take_the_order_of_the_configuration() {
    let pod = |names: &[&str]| {
        let containers: Vec<Value> = names.iter().map(|name| json!({"name": name, "image": "i"})).collect();
        json!({"metadata": {"name": "p"}, "spec": {"containers": containers}})
    };
    let names = |state: &TestObject| -> Vec<String> {
        let list = state.value["spec"]["containers"].as_array().unwrap();
        list.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    for (live, config, expected) in [
        (&["a", "b"][..], &["b", "a"][..], &["b", "a"][..]),
        (&["a", "x", "b"], &["b", "a"], &["x", "b", "a"]),
        (&["a", "b"], &["c"], &["a", "b", "c"]),
        (&["a", "b", "c"], &["c", "d", "a"], &["b", "c", "d", "a"]),
    ] {
        let state = TestObject::new(ResourceKind::Pod).updated("one", pod(live)).applied("two", pod(config));
        assert_eq!(names(&state), expected, "{live:?} {config:?}");
    }
}

#[test]
fn oldest_update_managers_are_merged_into_one_entry() {
    let mut state = TestObject::new(ResourceKind::ConfigMap);
    for index in 0..12 {
        state = state.updated(
            &format!("m{index:02}"),
            config_map(json!({ "a": index.to_string() , format!("k{index}"): "1"})),
        );
    }
    // Each manager lost its fields to the next one, so only the last one has any.
    assert_eq!(state.ownership().len(), 2);
    let mut data = serde_json::Map::new();
    let mut state = TestObject::new(ResourceKind::ConfigMap);
    for index in 0..12 {
        data.insert(format!("k{index:02}"), json!("1"));
        state = state.updated(&format!("m{index:02}"), config_map(Value::Object(data.clone())));
    }
    let owned = state.ownership();
    assert_eq!(owned.len(), 10);
    assert_eq!(owned[0].0, "ancient-changes");
    assert_eq!(owned[0].1, json!({"f:data": {".": {}, "f:k00": {}, "f:k01": {}, "f:k02": {}}}));
}

#[test]
fn managed_fields_round_trip() {
    let state = TestObject::new(ResourceKind::CsiNode).applied(
        "one",
        json!({"metadata": {"name": "n", "finalizers": ["x/y"]}, "spec": {"drivers": [{"name": "d",
            "nodeID": "1"}]}}),
    );
    let list = state.managed_fields.to_value();
    let again = ManagedFields::from_value(&list).unwrap();
    assert!(again.is_equal_ignoring_times(&state.managed_fields));
    assert_eq!(again.to_value(), list);
    assert!(ManagedFields::from_value(&json!([{"operation": "Guess"}])).is_none());
    assert!(
        ManagedFields::is_reset(&json!([]))
            && ManagedFields::is_reset(&json!([{}]))
            && !ManagedFields::is_reset(&list)
    );
}
