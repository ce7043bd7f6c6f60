//! The generated files of the chart: the RBAC rules of each role, and the schema of the values that are
//! settings. The tests compare them with the declarations, and `make chart` writes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt, fs,
    path::{Path, PathBuf},
};

use cofferdam_controllers::{
    Role,
    rbac::{NodeTopologySource, PolicyRule, RuleScope},
};
use cofferdam_node::NodePolicy;
use cofferdam_wasm::{Grant, Limits, OriginConfig, PoolConfig, StateConfig};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{
    cli::DriverPlacementArg,
    commands::render::{AdmissionTarget, node_local_policies, rule_value, rules, startup_taint_policies},
    config::{NodeRole, Roles, SETTINGS, Setting, SettingDefault, ValueKind},
};

/// Placements, as in `render rbac --drivers`.
const PLACEMENTS: [(&str, DriverPlacementArg); 4] = [
    ("central", DriverPlacementArg::Central),
    ("node", DriverPlacementArg::Node),
    ("node-labels", DriverPlacementArg::NodeLabels),
    ("csi-node", DriverPlacementArg::CsiNode),
];

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/cofferdam")
}

/// Compares a file of the chart with its expected content. Writes it if `make chart` runs the test.
fn check_file(path: &str, expected: &Value) {
    let path = chart().join(path);
    let expected = format!("{expected:#}\n");
    if env::var_os("UPDATE_CHART").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} is not up to date: run make chart", path.display());
}

fn roles(names: &[&str]) -> Roles {
    let mut roles = Roles::default();
    names.iter().for_each(|name| roles.insert(name).unwrap());
    roles
}

/// The part of a chart's role to which a rule belongs.
fn part(rule: &PolicyRule) -> &'static str {
    match rule.scope {
        RuleScope::Cluster => "cluster",
        RuleScope::OwnNamespace if rule.is_for_leases() => "leases",
        RuleScope::OwnNamespace => "namespace",
        RuleScope::DriverSecrets => "secrets",
    }
}

/// The rules of each part, as in `files/rbac.json`.
fn parts(rules: &[PolicyRule]) -> BTreeMap<&'static str, Vec<Value>> {
    let mut parts =
        BTreeMap::from(["cluster", "leases", "namespace", "secrets"].map(|part| (part, Vec::new())));
    for rule in rules {
        let names: Vec<&str> = rule.name.into_iter().collect();
        parts.entry(part(rule)).or_default().push(rule_value(rule, &names));
    }
    parts
}

fn role_names() -> Vec<&'static str> {
    Role::ALL.iter().map(|role| role.as_str()).chain(NodeRole::ALL.map(NodeRole::as_str)).collect()
}

#[test]
fn the_rbac_rules_of_the_chart_are_those_of_the_roles() {
    let of_role = |placement, role: &str| json!(parts(&rules(&roles(&[role]), placement)));
    let of_placement = |placement| -> Value {
        role_names()
            .into_iter()
            .map(|role| (role.to_owned(), of_role(placement, role)))
            .collect::<Map<_, _>>()
            .into()
    };
    let all: Map<_, _> =
        PLACEMENTS.iter().map(|(name, placement)| ((*name).to_owned(), of_placement(*placement))).collect();
    check_file("files/rbac.json", &all.into());
}

/// Verbs by scope, group, resource and name of a rule.
type Verbs = BTreeMap<(RuleScope, &'static str, &'static str, Option<&'static str>), BTreeSet<&'static str>>;

/// The chart merges the rules of its roles: this is right only if no combination of roles has further rules.
#[test]
fn the_rules_of_several_roles_are_the_union_of_those_of_each() {
    let names = role_names();
    for (placement_name, placement) in PLACEMENTS {
        let verbs = |names: &[&str]| -> Verbs {
            let rules = rules(&roles(names), placement);
            rules
                .into_iter()
                .map(|rule| ((rule.scope, rule.group, rule.resource, rule.name), rule.verbs))
                .collect()
        };
        for combination in 1..1_usize << names.len() {
            let chosen: Vec<&str> = names
                .iter()
                .enumerate()
                .filter_map(|(number, name)| (combination & (1 << number) != 0).then_some(*name))
                .collect();
            let mut union = Verbs::new();
            for name in &chosen {
                verbs(&[name])
                    .into_iter()
                    .for_each(|(key, verbs)| union.entry(key).or_default().extend(verbs));
            }
            assert_eq!(verbs(&chosen), union, "{placement_name}: {chosen:?}");
        }
    }
}

/// The fields of a section, from the error about an unknown one.
fn fields<T: DeserializeOwned + fmt::Debug>() -> BTreeSet<String> {
    let error = T::deserialize(&json!({"": true})).unwrap_err().to_string();
    let mut fields = error.split('`').skip(1).step_by(2).map(str::to_owned);
    assert_eq!(fields.next().as_deref(), Some(""), "{error}");
    fields.collect()
}

/// Pattern of durations, as Go's `time.ParseDuration` takes them.
const DURATION: &str = r"^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$";

/// The schema of a setting's value. The templates refuse settings that the chart sets, with the value that
/// replaces them.
fn setting_schema(setting: &Setting) -> Value {
    let mut schema = match setting.kind {
        ValueKind::Text("DURATION") => json!({"type": "string", "pattern": DURATION}),
        ValueKind::Text(_) => json!({"type": "string"}),
        ValueKind::Number(_) => json!({"type": "integer"}),
        ValueKind::Bool => json!({"type": "boolean"}),
        ValueKind::List(_) => json!({"type": "array", "items": {"type": "string"}}),
        ValueKind::Backends(_) => json!({}),
        ValueKind::Table => return json!({"$ref": "#/$defs/nodePolicy"}),
    };
    let default = match setting.default {
        SettingDefault::Unset => String::new(),
        SettingDefault::Value(default) | SettingDefault::InDev(default, _) => format!(" (default {default})"),
        SettingDefault::Computed(default) => format!(" (default: {default})"),
    };
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("description".to_owned(), format!("{}{default}", setting.help).into());
    }
    schema
}

/// The part of the schema that is written by hand.
fn base_schema() -> Value {
    let base = fs::read_to_string(chart().join("schema/values.base.json")).unwrap();
    serde_json::from_str(&base).unwrap()
}

#[test]
fn the_schema_of_the_values_has_every_field_of_a_drivers_section() {
    let schema = base_schema();
    let at = |path: &str| schema.pointer(path).unwrap_or_else(|| panic!("{path} is missing"));
    let driver = "/properties/driver/properties";
    for (path, expected) in [
        ("/$defs/nodePolicy".to_owned(), fields::<NodePolicy>()),
        ("/$defs/origin".to_owned(), fields::<OriginConfig>()),
        (format!("{driver}/limits"), fields::<Limits>()),
        (format!("{driver}/state"), fields::<StateConfig>()),
        (format!("{driver}/pool"), fields::<PoolConfig>()),
    ] {
        let properties = at(&format!("{path}/properties")).as_object().unwrap();
        assert_eq!(properties.keys().cloned().collect::<BTreeSet<_>>(), expected, "{path}");
    }
    assert_eq!(at(&format!("{driver}/grants/items/enum")), &json!(Grant::ALL));
}

#[test]
fn the_schema_of_the_values_has_every_setting() {
    let properties: Map<_, _> =
        SETTINGS.iter().map(|setting| (setting.name.clone(), setting_schema(setting))).collect();
    let mut schema = base_schema();
    let definitions = schema.pointer_mut("/$defs").and_then(Value::as_object_mut).unwrap();
    definitions.insert(
        "settings".to_owned(),
        json!({
            "description": "Settings, by the keys of the configuration file: docs/configuration.md.",
            "type": "object",
            "additionalProperties": false,
            "properties": properties,
        }),
    );
    check_file("values.schema.json", &schema);
}

/// The policies of `render admission-policy`, by the name of the restriction.
fn admission_policies(target: &AdmissionTarget<'_>) -> Value {
    json!({
        "node-local": node_local_policies(target, NodeTopologySource::Name),
        "node-labels": node_local_policies(target, NodeTopologySource::Labels),
        "startup-taint": startup_taint_policies(target),
    })
}

/// The chart replaces the three words.
#[test]
fn the_admission_policies_of_the_chart_are_those_of_render() {
    let words = AdmissionTarget { driver: "DRIVER", namespace: "NAMESPACE", service_account: "ACCOUNT" };
    check_file("files/admission-policies.json", &admission_policies(&words));
    let text = admission_policies(&words).to_string();
    let replaced = text.replace("DRIVER", "a.example").replace("NAMESPACE", "b").replace("ACCOUNT", "c");
    let target = AdmissionTarget { driver: "a.example", namespace: "b", service_account: "c" };
    assert_eq!(replaced, admission_policies(&target).to_string());
}
