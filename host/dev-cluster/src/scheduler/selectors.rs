//! Node and label selectors, taints and tolerations.

use k8s_openapi::{
    api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use crate::kinds::{FullNode, Labels};

/// Returns true if one of the terms matches. A term without requirements never matches.
pub(crate) fn has_matching_term(selector: &NodeSelector, node: &FullNode) -> bool {
    selector.node_selector_terms.iter().any(|term| is_term_matched(term, node))
}

fn is_term_matched(term: &NodeSelectorTerm, node: &FullNode) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    if labels.clone().next().is_none() && fields.clone().next().is_none() {
        return false;
    }
    let label = |one: &NodeSelectorRequirement| {
        is_requirement_met(one, node.slim.labels.get(&one.key).map(String::as_str))
    };
    // `metadata.name` is the only supported field.
    let field = |one: &NodeSelectorRequirement| {
        one.key == "metadata.name" && is_requirement_met(one, Some(node.slim.name.as_str()))
    };
    labels.clone().all(label) && fields.clone().all(field)
}

fn is_requirement_met(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = |value: &str| values.iter().any(|one| one == value);
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = || values.first().and_then(|text| number(text));
    let is_compared = |holds: fn(i64, i64) -> bool| match (value.and_then(number), bound()) {
        (Some(value), Some(bound)) => holds(value, bound),
        (None, _) | (_, None) => false,
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(is_listed),
        "NotIn" => value.is_none_or(|value| !is_listed(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => is_compared(|value, bound| value > bound),
        "Lt" => is_compared(|value, bound| value < bound),
        _ => false,
    }
}

/// Returns true if a label selector matches the labels.
pub(crate) fn is_matched_by_labels(selector: &LabelSelector, labels: &Labels) -> bool {
    let match_labels = selector.match_labels.iter().flatten();
    let has_equal_labels = match_labels.into_iter().all(|(key, value)| labels.get(key) == Some(value));
    let is_expression_met = |key: &String, operator: &str, values: &[String]| {
        let value = labels.get(key);
        match operator {
            "In" => value.is_some_and(|value| values.contains(value)),
            "NotIn" => value.is_none_or(|value| !values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    let mut expressions = selector.match_expressions.iter().flatten();
    has_equal_labels
        && expressions
            .all(|one| is_expression_met(&one.key, &one.operator, one.values.as_deref().unwrap_or_default()))
}

/// Returns true if a pod's `nodeSelector` and required node affinity match the node.
pub(crate) fn is_allowed_by_affinity(spec: &PodSpec, node: &FullNode) -> bool {
    let labels = &node.slim.labels;
    let mut selected = spec.node_selector.iter().flatten();
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected.all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|required| has_matching_term(required, node))
}

/// Returns true if a pod tolerates all NoSchedule and NoExecute taints.
pub(crate) fn has_tolerations_for(spec: &PodSpec, taints: &[Taint]) -> bool {
    let is_blocking = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    let mut taints = taints.iter().filter(is_blocking);
    taints.all(|taint| spec.tolerations.iter().flatten().any(|toleration| is_tolerated_by(toleration, taint)))
}

fn is_tolerated_by(toleration: &Toleration, taint: &Taint) -> bool {
    let non_empty =
        |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
    let effect = non_empty(&toleration.effect).is_none_or(|effect| effect == taint.effect);
    let key = non_empty(&toleration.key).is_none_or(|key| key == taint.key);
    let value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        Some(_) | None => {
            non_empty(&toleration.key).is_some()
                && toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
        }
    };
    effect && key && value
}
