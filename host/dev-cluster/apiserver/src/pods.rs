//! Pods: defaults, QoS class and immutable fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::meta;
use crate::meta::set_default;
use crate::quantity;
use crate::status::FieldError;

const CONTAINERS: [&str; 2] = ["initContainers", "containers"];
/// The resources that determine the QoS class.
const COMPUTE_RESOURCES: [&str; 2] = ["cpu", "memory"];
/// kube-apiserver's message about mutable fields.
const UPDATE_FORBIDDEN: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` \
    (allow it to be set to 1 if it was previously negative)";

/// Sets the defaults of a PodSpec.
pub(crate) fn set_pod_defaults(spec: &mut Map<String, Value>) {
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "schedulerName", "default-scheduler");
    set_default(spec, "dnsPolicy", "ClusterFirst");
    spec.entry("terminationGracePeriodSeconds").or_insert(json!(30));
    spec.entry("securityContext").or_insert(json!({}));
    spec.entry("enableServiceLinks").or_insert(json!(true));
    for member in CONTAINERS {
        for_each_object(spec.get_mut(member), set_container_defaults);
    }
    for_each_object(spec.get_mut("volumes"), |volume| {
        for source in ["configMap", "secret", "downwardAPI", "projected"] {
            if let Some(Value::Object(source)) = volume.get_mut(source) {
                source.entry("defaultMode").or_insert(json!(0o644));
            }
        }
    });
}

fn for_each_object(list: Option<&mut Value>, change: impl FnMut(&mut Map<String, Value>)) {
    if let Some(Value::Array(list)) = list {
        list.iter_mut().filter_map(Value::as_object_mut).for_each(change);
    }
}

fn set_container_defaults(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    let latest = !image.contains('@') && matches!(tag, None | Some("latest"));
    set_default(container, "imagePullPolicy", if latest { "Always" } else { "IfNotPresent" });
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    for_each_object(container.get_mut("ports"), |port| set_default(port, "protocol", "TCP"));
    let Some(Value::Object(resources)) = container.get_mut("resources") else { return };
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    // Limits without requests become the requests.
    if let Value::Object(requests) = resources.entry("requests").or_insert(json!({})) {
        for (resource, limit) in limits {
            requests.entry(resource).or_insert(limit);
        }
    }
}

/// The QoS class of a pod, from the requests and limits of its containers.
pub(crate) fn qos_class(pod: &Value) -> &'static str {
    let containers: Vec<&Value> =
        CONTAINERS.iter().flat_map(|member| meta::list(pod, &format!("/spec/{member}"))).collect();
    let sums = |member: &str| {
        let mut sums = BTreeMap::<&str, i128>::new();
        for (resource, amount) in containers.iter().flat_map(|one| resource_amounts(one, member)) {
            *sums.entry(resource).or_default() += amount;
        }
        sums
    };
    let (requests, limits) = (sums("requests"), sums("limits"));
    let limited =
        containers.iter().all(|one| resource_amounts(one, "limits").count() == COMPUTE_RESOURCES.len());
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if limited && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// CPU and memory in a container's requests or limits, as `member` says. Amounts of 0 are omitted.
fn resource_amounts(container: &Value, member: &str) -> impl Iterator<Item = (&'static str, i128)> {
    COMPUTE_RESOURCES.into_iter().filter_map(move |resource| {
        let text = meta::text(container, &format!("/resources/{member}/{resource}"));
        Some((resource, quantity::parse(text).filter(|amount| *amount > 0)?))
    })
}

/// Reports changes of immutable fields. Of a pod with scheduling gates only the number of containers is
/// checked.
pub(crate) fn validate_pod_update(old: &Value, next: &Value, errors: &mut Vec<FieldError>) {
    for member in ["containers", "initContainers"] {
        let pointer = format!("/spec/{member}");
        if meta::list(old, &pointer).len() != meta::list(next, &pointer).len() {
            let detail = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(format!("spec.{member}"), detail));
            return;
        }
    }
    let gated = !meta::list(old, "/spec/schedulingGates").is_empty();
    if !gated && immutable_spec(old) != immutable_spec(next) {
        errors.push(FieldError::forbidden("spec", UPDATE_FORBIDDEN));
    }
}

/// The PodSpec without mutable fields.
fn immutable_spec(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    if let Value::Object(spec) = &mut spec {
        spec.remove("activeDeadlineSeconds");
        spec.remove("tolerations");
        spec.remove("schedulingGates");
        for member in CONTAINERS {
            for_each_object(spec.get_mut(member), |container| {
                container.remove("image");
            });
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: Value) -> Value {
        let mut pod = json!({"spec": {"containers": containers}});
        meta::edit(&mut pod, "spec", set_pod_defaults);
        pod
    }

    #[test]
    fn qos_class_follows_from_requests_and_limits() {
        let qos_class_of = |resources: Value| qos_class(&pod(json!([{"name": "a", "resources": resources}])));
        assert_eq!(qos_class_of(json!({})), "BestEffort");
        assert_eq!(qos_class_of(json!({"requests": {"storage": "1Gi"}})), "BestEffort");
        assert_eq!(qos_class_of(json!({"requests": {"cpu": "0"}})), "BestEffort");
        assert_eq!(qos_class_of(json!({"requests": {"cpu": "100m"}})), "Burstable");
        assert_eq!(qos_class_of(json!({"limits": {"cpu": "1"}})), "Burstable");
        // Requests default to the limits.
        let limits = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(qos_class_of(json!({"limits": limits})), "Guaranteed");
        assert_eq!(qos_class_of(json!({"limits": limits, "requests": {"cpu": "1000m"}})), "Guaranteed");
        assert_eq!(qos_class_of(json!({"limits": limits, "requests": {"cpu": "500m"}})), "Burstable");
        let two = json!([{"name": "a", "resources": {"limits": limits}}, {"name": "b"}]);
        assert_eq!(qos_class(&pod(two)), "Burstable");
    }

    #[test]
    fn image_updates_are_allowed_and_command_updates_forbidden() {
        let error_count = |next: Value| {
            let mut errors = Vec::new();
            validate_pod_update(&pod(json!([{"name": "a", "image": "i:1"}])), &pod(next), &mut errors);
            errors.len()
        };
        assert_eq!(error_count(json!([{"name": "a", "image": "i:2"}])), 0);
        assert_eq!(error_count(json!([{"name": "a", "image": "i:1", "command": ["c"]}])), 1);
        assert_eq!(error_count(json!([])), 1);
    }
}
