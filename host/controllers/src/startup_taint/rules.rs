//! Rules of start-up taints. Source: the node services of CSI drivers, such as that of aws-ebs-csi-driver.
//!
//! - The taint of a driver is removed when the CSINode names the driver: the kubelet then counts its volumes and
//!   can mount them.
//! - The CSINode must belong to the Node. That of an earlier Node of the same name exists until the garbage
//!   collector deletes it, and names the drivers of the earlier Node.

use cofferdam_domain::{CsiNode, DriverName, Node, names};
use serde_json::{Value, json};

/// Path of the taints in a JSON patch.
pub const TAINTS: &str = "/spec/taints";

/// The drivers whose taint is to be removed from a Node, of those for which `is_managed` is true.
pub fn registered_drivers<'a>(
    node: &'a Node,
    csi_node: Option<&CsiNode>,
    is_managed: impl Fn(&DriverName) -> bool,
) -> Vec<&'a DriverName> {
    let is_of_node =
        |csi_node: &&CsiNode| csi_node.owners.is_empty() || csi_node.owners.contains(&node.meta.uid);
    let Some(csi_node) = csi_node.filter(is_of_node) else { return Vec::new() };
    node.startup_taints.iter().filter(|driver| is_managed(driver) && csi_node.has_driver(driver)).collect()
}

/// The JSON patch that removes the taints of `drivers` from the `taints` of a Node, and tests that the list
/// is unchanged. Returns `None` if the Node has none of these taints.
pub fn removal_patch(taints: &Value, drivers: &[&DriverName]) -> Option<Vec<Value>> {
    let keys: Vec<String> = drivers.iter().map(|driver| names::startup_taint(driver)).collect();
    let is_removed = |taint: &Value| {
        let key = taint.get("key").and_then(Value::as_str);
        key.is_some_and(|key| keys.iter().any(|removed| removed == key))
    };
    let found = taints.as_array()?;
    let left: Vec<&Value> = found.iter().filter(|taint| !is_removed(taint)).collect();
    if left.len() == found.len() {
        return None;
    }
    let change = match left.is_empty() {
        true => json!({"op": "remove", "path": TAINTS}),
        false => json!({"op": "replace", "path": TAINTS, "value": left}),
    };
    Some(vec![json!({"op": "test", "path": TAINTS, "value": taints}), change])
}

#[cfg(test)]
mod tests;
