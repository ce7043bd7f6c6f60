//! Printer columns of `kubectl get`.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::descriptors::ResourceKind;
use crate::meta::{self, text};

type Column = (&'static str, u8);

const NAME: Column = ("Name", 0);
const AGE: Column = ("Age", 0);

/// Column names and priorities (1: only with `-o wide`), as in kube-apiserver.
const fn column_layout(kind: ResourceKind) -> &'static [Column] {
    match kind {
        ResourceKind::Namespace => &[NAME, ("Status", 0), AGE],
        ResourceKind::Pod => &[
            NAME,
            ("Ready", 0),
            ("Status", 0),
            ("Restarts", 0),
            AGE,
            ("IP", 1),
            ("Node", 1),
            ("Nominated Node", 1),
            ("Readiness Gates", 1),
        ],
        ResourceKind::Node => &[
            NAME,
            ("Status", 0),
            ("Roles", 0),
            AGE,
            ("Version", 0),
            ("Internal-IP", 1),
            ("External-IP", 1),
            ("OS-Image", 1),
            ("Kernel-Version", 1),
            ("Container-Runtime", 1),
        ],
        ResourceKind::PersistentVolume => &[
            NAME,
            ("Capacity", 0),
            ("Access Modes", 0),
            ("Reclaim Policy", 0),
            ("Status", 0),
            ("Claim", 0),
            ("StorageClass", 0),
            ("VolumeAttributesClass", 0),
            ("Reason", 0),
            AGE,
            ("VolumeMode", 1),
        ],
        ResourceKind::PersistentVolumeClaim => &[
            NAME,
            ("Status", 0),
            ("Volume", 0),
            ("Capacity", 0),
            ("Access Modes", 0),
            ("StorageClass", 0),
            ("VolumeAttributesClass", 0),
            AGE,
            ("VolumeMode", 1),
        ],
        ResourceKind::Event => &[
            ("Last Seen", 0),
            ("Type", 0),
            ("Reason", 0),
            ("Object", 0),
            ("Subobject", 1),
            ("Source", 1),
            ("Message", 0),
            ("First Seen", 1),
            ("Count", 1),
            ("Name", 1),
        ],
        ResourceKind::Secret => &[NAME, ("Type", 0), ("Data", 0), AGE],
        ResourceKind::ConfigMap => &[NAME, ("Data", 0), AGE],
        ResourceKind::ServiceAccount => &[NAME, ("Secrets", 0), AGE],
        ResourceKind::StorageClass => &[
            NAME,
            ("Provisioner", 0),
            ("ReclaimPolicy", 0),
            ("VolumeBindingMode", 0),
            ("AllowVolumeExpansion", 0),
            AGE,
        ],
        ResourceKind::CsiDriver => &[
            NAME,
            ("AttachRequired", 0),
            ("PodInfoOnMount", 0),
            ("StorageCapacity", 0),
            ("TokenRequests", 0),
            ("RequiresRepublish", 0),
            ("Modes", 0),
            AGE,
        ],
        ResourceKind::CsiNode => &[NAME, ("Drivers", 0), AGE],
        ResourceKind::CsiStorageCapacity => &[NAME, ("StorageClassName", 0), ("Capacity", 0)],
        ResourceKind::VolumeAttachment => {
            &[NAME, ("Attacher", 0), ("PV", 0), ("Node", 0), ("Attached", 0), AGE]
        }
        ResourceKind::VolumeAttributesClass => &[NAME, ("DriverName", 0), AGE],
        ResourceKind::Lease => &[NAME, ("Holder", 0), AGE],
        ResourceKind::VolumeSnapshot => &[
            NAME,
            ("ReadyToUse", 0),
            ("SourcePVC", 0),
            ("SourceSnapshotContent", 0),
            ("RestoreSize", 0),
            ("SnapshotClass", 0),
            ("SnapshotContent", 0),
            ("CreationTime", 0),
            AGE,
        ],
        ResourceKind::VolumeSnapshotContent => &[
            NAME,
            ("ReadyToUse", 0),
            ("RestoreSize", 0),
            ("DeletionPolicy", 0),
            ("Driver", 0),
            ("VolumeSnapshotClass", 0),
            ("VolumeSnapshot", 0),
            ("VolumeSnapshotNamespace", 0),
            AGE,
        ],
        ResourceKind::VolumeSnapshotClass => &[NAME, ("Driver", 0), ("DeletionPolicy", 0), AGE],
    }
}

/// The column definitions of a kind.
pub(crate) fn columns(kind: ResourceKind) -> Value {
    let column = |(name, priority): &Column| {
        let name = *name;
        let kind = match (kind, name) {
            (_, "Data" | "Secrets" | "Drivers" | "Count")
            | (ResourceKind::VolumeSnapshotContent, "RestoreSize") => "integer",
            (ResourceKind::VolumeSnapshot | ResourceKind::VolumeSnapshotContent, "ReadyToUse") => "boolean",
            (_, "CreationTime" | "Age") if kind.resource().is_custom => "date",
            _ => "string",
        };
        let format = if name == "Name" { "name" } else { "" };
        json!({"name": name, "type": kind, "format": format, "description": name, "priority": priority})
    };
    Value::Array(column_layout(kind).iter().map(column).collect())
}

/// The cells of one object's row.
pub(crate) fn cells(kind: ResourceKind, value: &Value, now: Timestamp) -> Vec<Value> {
    let age = || json!(age(text(value, "/metadata/creationTimestamp"), now));
    let name = || json!(meta::name(value));
    match kind {
        ResourceKind::Namespace => vec![name(), json!(text(value, "/status/phase")), age()],
        ResourceKind::Pod => pod(value, age()),
        ResourceKind::Node => node(value, age()),
        ResourceKind::PersistentVolume => volume(value, age()),
        ResourceKind::PersistentVolumeClaim => claim(value, age()),
        ResourceKind::Event => event(value, now),
        ResourceKind::Secret => {
            vec![name(), json!(text(value, "/type")), json!(member_count(value, &["/data"])), age()]
        }
        ResourceKind::ConfigMap => vec![name(), json!(member_count(value, &["/data", "/binaryData"])), age()],
        ResourceKind::ServiceAccount => vec![name(), json!(meta::list(value, "/secrets").len()), age()],
        ResourceKind::StorageClass => storage_class(value, age()),
        ResourceKind::CsiDriver => csi_driver(value, age()),
        ResourceKind::CsiNode => vec![name(), json!(meta::list(value, "/spec/drivers").len()), age()],
        ResourceKind::CsiStorageCapacity => {
            vec![name(), json!(text(value, "/storageClassName")), json!(text(value, "/capacity"))]
        }
        ResourceKind::VolumeAttachment => vec![
            name(),
            json!(text(value, "/spec/attacher")),
            json!(text(value, "/spec/source/persistentVolumeName")),
            json!(text(value, "/spec/nodeName")),
            json!(bool_at(value, "/status/attached").to_string()),
            age(),
        ],
        ResourceKind::VolumeAttributesClass => vec![name(), json!(text(value, "/driverName")), age()],
        ResourceKind::Lease => vec![name(), json!(text(value, "/spec/holderIdentity")), age()],
        ResourceKind::VolumeSnapshot => vec![
            name(),
            custom_cell(value, "/status/readyToUse"),
            custom_cell(value, "/spec/source/persistentVolumeClaimName"),
            custom_cell(value, "/spec/source/volumeSnapshotContentName"),
            // The column has the type string, and the field may be a number.
            value.pointer("/status/restoreSize").map_or(Value::Null, |size| {
                json!(size.as_str().map_or_else(|| size.to_string(), str::to_owned))
            }),
            custom_cell(value, "/spec/volumeSnapshotClassName"),
            custom_cell(value, "/status/boundVolumeSnapshotContentName"),
            match text(value, "/status/creationTime") {
                "" => Value::Null,
                at => json!(self::age(at, now)),
            },
            age(),
        ],
        ResourceKind::VolumeSnapshotContent => vec![
            name(),
            custom_cell(value, "/status/readyToUse"),
            custom_cell(value, "/status/restoreSize"),
            custom_cell(value, "/spec/deletionPolicy"),
            custom_cell(value, "/spec/driver"),
            custom_cell(value, "/spec/volumeSnapshotClassName"),
            custom_cell(value, "/spec/volumeSnapshotRef/name"),
            custom_cell(value, "/spec/volumeSnapshotRef/namespace"),
            age(),
        ],
        ResourceKind::VolumeSnapshotClass => {
            vec![name(), custom_cell(value, "/driver"), custom_cell(value, "/deletionPolicy"), age()]
        }
    }
}

/// The cell of a custom resource's field; null if the field is unset.
fn custom_cell(value: &Value, pointer: &str) -> Value {
    value.pointer(pointer).cloned().unwrap_or_default()
}

fn bool_at(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool).unwrap_or(false)
}

fn member_count(value: &Value, pointers: &[&str]) -> usize {
    pointers.iter().filter_map(|pointer| value.pointer(pointer)?.as_object()).map(serde_json::Map::len).sum()
}

fn or_default<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

fn access_modes(value: &Value, pointer: &str) -> String {
    let found = meta::strings(value, pointer);
    [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ]
    .iter()
    .filter(|(mode, _)| found.contains(mode))
    .map(|(_, short)| *short)
    .collect::<Vec<_>>()
    .join(",")
}

/// The class of a claim or volume: the legacy annotation, else the field.
fn class(value: &Value) -> &str {
    let annotation = value
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class")?.as_str());
    annotation.unwrap_or_else(|| text(value, "/spec/storageClassName"))
}

fn claim(value: &Value, age: Value) -> Vec<Value> {
    let phase = if meta::deleting(value) { "Terminating" } else { text(value, "/status/phase") };
    let bound = !text(value, "/spec/volumeName").is_empty();
    let attributes = or_default(
        text(value, "/status/currentVolumeAttributesClassName"),
        text(value, "/spec/volumeAttributesClassName"),
    );
    vec![
        json!(meta::name(value)),
        json!(phase),
        json!(text(value, "/spec/volumeName")),
        json!(if bound { text(value, "/status/capacity/storage") } else { "" }),
        json!(if bound { access_modes(value, "/status/accessModes") } else { String::new() }),
        json!(class(value)),
        json!(or_default(attributes, "<unset>")),
        age,
        json!(or_default(text(value, "/spec/volumeMode"), "<unset>")),
    ]
}

fn volume(value: &Value, age: Value) -> Vec<Value> {
    let phase = if meta::deleting(value) { "Terminating" } else { text(value, "/status/phase") };
    let claim = match value.pointer("/spec/claimRef") {
        Some(claim) => format!("{}/{}", text(claim, "/namespace"), text(claim, "/name")),
        None => String::new(),
    };
    vec![
        json!(meta::name(value)),
        json!(text(value, "/spec/capacity/storage")),
        json!(access_modes(value, "/spec/accessModes")),
        json!(text(value, "/spec/persistentVolumeReclaimPolicy")),
        json!(phase),
        json!(claim),
        json!(class(value)),
        json!(or_default(text(value, "/spec/volumeAttributesClassName"), "<unset>")),
        json!(text(value, "/status/reason")),
        age,
        json!(or_default(text(value, "/spec/volumeMode"), "<unset>")),
    ]
}

fn storage_class(value: &Value, age: Value) -> Vec<Value> {
    let annotation = |key: &str| {
        value.pointer("/metadata/annotations").and_then(|all| all.get(key)?.as_str()) == Some("true")
    };
    let default = annotation("storageclass.kubernetes.io/is-default-class")
        || annotation("storageclass.beta.kubernetes.io/is-default-class");
    let name = meta::name(value);
    vec![
        json!(if default { format!("{name} (default)") } else { name.to_owned() }),
        json!(text(value, "/provisioner")),
        json!(text(value, "/reclaimPolicy")),
        json!(text(value, "/volumeBindingMode")),
        json!(bool_at(value, "/allowVolumeExpansion")),
        age,
    ]
}

fn csi_driver(value: &Value, age: Value) -> Vec<Value> {
    let tokens: Vec<&str> =
        meta::list(value, "/spec/tokenRequests").iter().map(|token| text(token, "/audience")).collect();
    vec![
        json!(meta::name(value)),
        json!(value.pointer("/spec/attachRequired").and_then(Value::as_bool).unwrap_or(true)),
        json!(bool_at(value, "/spec/podInfoOnMount")),
        json!(bool_at(value, "/spec/storageCapacity")),
        json!(if tokens.is_empty() { "<unset>".to_owned() } else { tokens.join(",") }),
        json!(bool_at(value, "/spec/requiresRepublish")),
        json!(meta::strings(value, "/spec/volumeLifecycleModes").join(",")),
        age,
    ]
}

fn pod(value: &Value, age: Value) -> Vec<Value> {
    let statuses = meta::list(value, "/status/containerStatuses");
    let ready = statuses.iter().filter(|status| bool_at(status, "/ready")).count();
    let restarts: u64 = statuses.iter().filter_map(|status| status.pointer("/restartCount")?.as_u64()).sum();
    let phase = or_default(text(value, "/status/reason"), text(value, "/status/phase"));
    vec![
        json!(meta::name(value)),
        json!(format!("{ready}/{}", meta::list(value, "/spec/containers").len())),
        json!(if meta::deleting(value) { "Terminating" } else { phase }),
        json!(restarts.to_string()),
        age,
        json!(or_default(text(value, "/status/podIP"), "<none>")),
        json!(or_default(text(value, "/spec/nodeName"), "<none>")),
        json!(or_default(text(value, "/status/nominatedNodeName"), "<none>")),
        json!("<none>"),
    ]
}

fn node(value: &Value, age: Value) -> Vec<Value> {
    let ready = meta::list(value, "/status/conditions").iter().find(|one| text(one, "/type") == "Ready");
    let mut status = match ready.map(|ready| text(ready, "/status")) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if bool_at(value, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let labels = value.pointer("/metadata/labels").and_then(Value::as_object);
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    let address = |wanted: &str| {
        let addresses = meta::list(value, "/status/addresses");
        let found = addresses.iter().find(|address| text(address, "/type") == wanted);
        found.map_or("<none>", |address| text(address, "/address")).to_owned()
    };
    let info =
        |field: &str| json!(or_default(text(value, &format!("/status/nodeInfo/{field}")), "<unknown>"));
    vec![
        json!(meta::name(value)),
        json!(status),
        json!(if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }),
        age,
        json!(text(value, "/status/nodeInfo/kubeletVersion")),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        info("osImage"),
        info("kernelVersion"),
        info("containerRuntimeVersion"),
    ]
}

fn event(value: &Value, now: Timestamp) -> Vec<Value> {
    let series = or_default(text(value, "/series/lastObservedTime"), text(value, "/lastTimestamp"));
    let first = or_default(text(value, "/firstTimestamp"), text(value, "/eventTime"));
    let last = or_default(series, first);
    let kind = text(value, "/involvedObject/kind").to_lowercase();
    let name = text(value, "/involvedObject/name");
    let source = or_default(text(value, "/source/component"), text(value, "/reportingComponent"));
    let host = text(value, "/source/host");
    let count = value.pointer("/series/count").or_else(|| value.pointer("/count"));
    vec![
        json!(age(last, now)),
        json!(text(value, "/type")),
        json!(text(value, "/reason")),
        json!(if name.is_empty() { kind } else { format!("{kind}/{name}") }),
        json!(text(value, "/involvedObject/fieldPath")),
        json!(if host.is_empty() { source.to_owned() } else { format!("{source}, {host}") }),
        json!(text(value, "/message").trim()),
        json!(age(first, now)),
        json!(count.and_then(Value::as_u64).unwrap_or(1)),
        json!(meta::name(value)),
    ]
}

fn age(at: &str, now: Timestamp) -> String {
    match at.parse::<Timestamp>() {
        Ok(at) => human_duration(now.as_second() - at.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Formats an age as `kubectl` does, with at most two units.
fn human_duration(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |first: i64, unit: &str, second: i64, small: &str| {
        if second == 0 { format!("{first}{unit}") } else { format!("{first}{unit}{second}{small}") }
    };
    if seconds < -1 {
        "<invalid>".to_owned()
    } else if seconds < 0 {
        "0s".to_owned()
    } else if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 192 {
        two(days, "d", hours % 24, "h")
    } else if days < 730 {
        format!("{days}d")
    } else if years < 8 {
        two(years, "y", days % 365, "d")
    } else {
        format!("{years}y")
    }
}

#[cfg(test)]
mod tests {
    use super::human_duration;

    #[test]
    fn ages_match_kubectl() {
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (315_360_000, "10y"),
        ] {
            assert_eq!(human_duration(seconds), expected, "{seconds}");
        }
    }
}
