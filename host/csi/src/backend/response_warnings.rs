//! Warnings about responses that are accepted although an id or a map in them exceeds CSI's limit or contains
//! a secret of the call, or although a driver without topology returns one: such drivers work with the
//! sidecars.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use cofferdam_backend::{
    Redactor,
    checks::{self, ResponseLimits},
};
use cofferdam_domain::{
    DriverName,
    storage::{CreatedVolume, Parameters},
};

/// True for each warning that was logged for a driver. Each is logged once.
#[derive(Debug, Default)]
pub(super) struct WarningsLogged {
    long_id: AtomicBool,
    long_map: AtomicBool,
    topology: AtomicBool,
    snapshot_ids: AtomicBool,
}

/// Checks the responses of one driver, and logs warnings.
#[derive(Clone, Debug)]
pub(super) struct ResponseWarnings {
    driver: DriverName,
    /// The driver has VOLUME_ACCESSIBILITY_CONSTRAINTS.
    has_topology: bool,
    logged: Arc<WarningsLogged>,
}

impl ResponseWarnings {
    pub(super) fn new(driver: DriverName, has_topology: bool, logged: Arc<WarningsLogged>) -> Self {
        Self { driver, has_topology, logged }
    }

    /// Drops the topology of a volume of a driver without VOLUME_ACCESSIBILITY_CONSTRAINTS, and logs a
    /// warning the first time. As in external-provisioner, the PersistentVolume then has no node affinity:
    /// nodes do not have the topology keys of such a driver, and pods could not be scheduled.
    pub(super) fn drop_unannounced_topology(&self, volume: &mut CreatedVolume) {
        self.log(self.topology_warnings(volume));
    }

    /// Logs a warning if an id contains a secret of the call ([`Redactor::contains_long_secret`] ignores
    /// short ones), or the first time that an id exceeds CSI's limit.
    pub(super) fn check_id(&self, field: &str, id: &str, redactor: &Redactor) {
        self.log(self.id_warnings(field, id, redactor));
    }

    /// As [`Self::check_id`], for the keys and values of a map, and CSI's limit for maps.
    pub(super) fn check_map(&self, field: &str, map: &Parameters, redactor: &Redactor) {
        self.log(self.map_warnings(field, map, redactor));
    }

    /// Logs a warning the first time that the snapshot in a response has another source or another handle
    /// than the request. Some drivers use several forms of one id, and csi-snapshotter does not compare them.
    pub(super) fn warn_of_other_id(&self, field: &str, returned: &str, expected: &str, redactor: &Redactor) {
        self.log(self.other_id_warning(field, returned, expected, redactor).into_iter().collect());
    }

    fn other_id_warning(
        &self,
        field: &str,
        returned: &str,
        expected: &str,
        redactor: &Redactor,
    ) -> Option<String> {
        let is_first = returned != expected && !self.logged.snapshot_ids.swap(true, Ordering::Relaxed);
        is_first.then(|| {
            let returned = redactor.printable(returned);
            format!("a snapshot with the {field} {returned:?}; the request has {expected:?}, which is used")
        })
    }

    fn log(&self, warnings: Vec<String>) {
        for warning in warnings {
            tracing::warn!(driver = %self.driver, "the CSI driver returns {warning}");
        }
    }

    fn id_warnings(&self, field: &str, id: &str, redactor: &Redactor) -> Vec<String> {
        let max_bytes = ResponseLimits::CSI_SPEC.max_id_bytes;
        let secret_warning = redactor.contains_long_secret(id).then(|| {
            let id = redactor.printable(id);
            format!("a secret of the call in the {field} {id:?}, which everybody can read")
        });
        secret_warning
            .into_iter()
            .chain(self.length_warning(field, id.len(), max_bytes, &self.logged.long_id))
            .collect()
    }

    fn map_warnings(&self, field: &str, map: &Parameters, redactor: &Redactor) -> Vec<String> {
        let (bytes, max_bytes) = (checks::total_bytes(map), ResponseLimits::CSI_SPEC.max_map_bytes);
        let has_secret = |(key, value): &(&String, &String)| {
            redactor.contains_long_secret(key) || redactor.contains_long_secret(value)
        };
        let has_secret = map.iter().filter(has_secret).map(|(key, _)| {
            let key = redactor.printable(key);
            format!("a secret of the call in the {field} under the key {key:?}, where everybody can read it")
        });
        has_secret.chain(self.length_warning(field, bytes, max_bytes, &self.logged.long_map)).collect()
    }

    fn topology_warnings(&self, volume: &mut CreatedVolume) -> Vec<String> {
        if self.has_topology || volume.topology.is_empty() {
            return Vec::new();
        }
        volume.topology.clear();
        let is_first = !self.logged.topology.swap(true, Ordering::Relaxed);
        let text = "an accessible_topology without VOLUME_ACCESSIBILITY_CONSTRAINTS; it is ignored";
        is_first.then(|| text.to_owned()).into_iter().collect()
    }

    /// A warning about a length above CSI's limit; `None` if the length is within it or `logged` is already
    /// true.
    fn length_warning(
        &self,
        field: &str,
        bytes: usize,
        max_bytes: usize,
        logged: &AtomicBool,
    ) -> Option<String> {
        let is_first = bytes > max_bytes && !logged.swap(true, Ordering::Relaxed);
        is_first.then(|| format!("a {field} of {bytes} bytes; CSI allows {max_bytes}"))
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::Secret;

    use super::*;

    fn warnings() -> ResponseWarnings {
        ResponseWarnings::new("a.example".into(), true, Arc::default())
    }

    fn redactor() -> Redactor {
        Redactor::new([("password".to_owned(), Secret::new("hunter2hunter2"))].into_iter().collect())
    }

    fn map(key: &str, value: &str) -> Parameters {
        [(key.to_owned(), value.to_owned())].into()
    }

    #[test]
    fn another_id_of_a_snapshot_is_reported_once() {
        let warnings = warnings();
        let other = |returned| warnings.other_id_warning("source", returned, "v/array/iscsi", &redactor());
        assert_eq!(other("v/array/iscsi"), None);
        let text = "a snapshot with the source \"v\"; the request has \"v/array/iscsi\", which is used";
        assert_eq!(other("v").as_deref(), Some(text));
        assert_eq!(other("v"), None);
    }

    #[test]
    fn ids_and_maps_above_csi_limits_are_logged_once() {
        let response_warnings = warnings();
        assert_eq!(
            response_warnings.id_warnings("volume handle", &"x".repeat(128), &redactor()),
            Vec::<String>::new()
        );
        let messages = response_warnings.id_warnings("volume handle", &"x".repeat(165), &redactor());
        assert_eq!(messages, ["a volume handle of 165 bytes; CSI allows 128"]);
        assert_eq!(
            response_warnings.id_warnings("volume handle", &"x".repeat(166), &redactor()),
            Vec::<String>::new()
        );
        assert_eq!(
            response_warnings.map_warnings("volume context", &map("k", &"x".repeat(4_095)), &redactor()),
            Vec::<String>::new()
        );
        let messages =
            response_warnings.map_warnings("volume context", &map("k", &"x".repeat(4_096)), &redactor());
        assert_eq!(messages, ["a volume context of 4097 bytes; CSI allows 4096"]);
        assert_eq!(
            response_warnings.map_warnings("volume context", &map("k", &"x".repeat(4_096)), &redactor()),
            Vec::<String>::new()
        );
    }

    #[test]
    fn topology_without_the_capability_is_dropped_and_logged_once() {
        let with_zone = || CreatedVolume {
            handle: "v".into(),
            capacity: None,
            context: Parameters::new(),
            topology: vec![map("zone", "a")],
            connection_info: None,
        };
        let response_warnings = ResponseWarnings::new("a.example".into(), false, Arc::default());
        for expected in [1, 0] {
            let mut volume = with_zone();
            assert_eq!(response_warnings.topology_warnings(&mut volume).len(), expected);
            assert_eq!(volume.topology, []);
        }
        let mut volume = with_zone();
        assert_eq!(warnings().topology_warnings(&mut volume), Vec::<String>::new());
        assert_eq!(volume, with_zone());
    }

    #[test]
    fn secrets_in_responses_are_detected_and_redacted() {
        let response_warnings = warnings();
        assert_eq!(
            response_warnings.id_warnings("volume handle", "u:hunter2hunter2@array", &redactor()),
            ["a secret of the call in the volume handle \"u:[secret]@array\", which everybody can read"]
        );
        for (key, value, expected_key) in [("k", "hunter2hunter2", "k"), ("hunter2hunter2", "v", "[secret]")]
        {
            let messages = response_warnings.map_warnings("volume context", &map(key, value), &redactor());
            assert_eq!(messages.len(), 1);
            assert!(
                messages.iter().all(|notice| notice.contains(&format!("under the key \"{expected_key}\"")))
            );
        }
        assert_eq!(
            response_warnings.map_warnings("volume context", &map("k", "v"), &redactor()),
            Vec::<String>::new()
        );
    }
}
