//! What a driver returns that it should not, and that is taken all the same: with the sidecars such drivers
//! work.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use cofferdam_backend::{
    Redactor,
    checks::{self, ResponseLimits, printable},
};
use cofferdam_domain::{DriverName, storage::Parameters};

/// What was said of a driver already. Each of its answers is as long as the one before.
#[derive(Debug, Default)]
pub(super) struct WarningsLogged {
    long_id: AtomicBool,
    long_map: AtomicBool,
}

/// Looks at what a driver returns of one call, and says in the log what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct ResponseWarnings {
    driver: DriverName,
    redactor: Redactor,
    logged: Arc<WarningsLogged>,
}

impl ResponseWarnings {
    pub(super) fn new(driver: DriverName, redactor: Redactor, logged: Arc<WarningsLogged>) -> Self {
        Self { driver, redactor, logged }
    }

    /// Looks at an id.
    pub(super) fn check_id(&self, field: &str, id: &str) {
        self.log(self.id_warnings(field, id));
    }

    /// Looks at a map.
    pub(super) fn check_map(&self, field: &str, map: &Parameters) {
        self.log(self.map_warnings(field, map));
    }

    fn log(&self, warnings: Vec<String>) {
        for warning in warnings {
            tracing::warn!(driver = %self.driver, "the CSI driver returns {warning}");
        }
    }

    fn id_warnings(&self, field: &str, id: &str) -> Vec<String> {
        let max_bytes = ResponseLimits::CSI_SPEC.max_id_bytes;
        let secret_warning = self.redactor.contains_long_secret(id).then(|| {
            let id = self.redacted(id);
            format!("a secret of the call in the {field} {id:?}, which everybody can read")
        });
        secret_warning
            .into_iter()
            .chain(self.length_warning(field, id.len(), max_bytes, &self.logged.long_id))
            .collect()
    }

    fn map_warnings(&self, field: &str, map: &Parameters) -> Vec<String> {
        let (bytes, max_bytes) = (checks::total_bytes(map), ResponseLimits::CSI_SPEC.max_map_bytes);
        let has_secret = |(key, value): &(&String, &String)| {
            self.redactor.contains_long_secret(key) || self.redactor.contains_long_secret(value)
        };
        let has_secret = map.iter().filter(has_secret).map(|(key, _)| {
            let key = self.redacted(key);
            format!("a secret of the call in the {field} under the key {key:?}, where everybody can read it")
        });
        has_secret.chain(self.length_warning(field, bytes, max_bytes, &self.logged.long_map)).collect()
    }

    fn redacted(&self, text: &str) -> String {
        printable(&self.redactor.redact_escaped(text))
    }

    /// That something is longer than CSI allows, once.
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
    use cofferdam_domain::storage::{Secret, Secrets};

    use super::*;

    fn warnings() -> ResponseWarnings {
        let secrets: Secrets = [("password".to_owned(), Secret::new("hunter2hunter2"))].into_iter().collect();
        ResponseWarnings::new("a.example".into(), Redactor::new(secrets), Arc::default())
    }

    fn map(key: &str, value: &str) -> Parameters {
        [(key.to_owned(), value.to_owned())].into()
    }

    #[test]
    fn ids_and_maps_above_csi_limits_are_logged_once() {
        let response_warnings = warnings();
        assert_eq!(response_warnings.id_warnings("volume handle", &"x".repeat(128)), Vec::<String>::new());
        let messages = response_warnings.id_warnings("volume handle", &"x".repeat(165));
        assert_eq!(messages, ["a volume handle of 165 bytes; CSI allows 128"]);
        assert_eq!(response_warnings.id_warnings("volume handle", &"x".repeat(166)), Vec::<String>::new());
        assert_eq!(
            response_warnings.map_warnings("volume context", &map("k", &"x".repeat(4_095))),
            Vec::<String>::new()
        );
        let messages = response_warnings.map_warnings("volume context", &map("k", &"x".repeat(4_096)));
        assert_eq!(messages, ["a volume context of 4097 bytes; CSI allows 4096"]);
        assert_eq!(
            response_warnings.map_warnings("volume context", &map("k", &"x".repeat(4_096))),
            Vec::<String>::new()
        );
    }

    #[test]
    fn secrets_in_responses_are_detected_and_redacted() {
        let response_warnings = warnings();
        assert_eq!(
            response_warnings.id_warnings("volume handle", "u:hunter2hunter2@array"),
            ["a secret of the call in the volume handle \"u:[secret]@array\", which everybody can read"]
        );
        for (key, value, expected_key) in [("k", "hunter2hunter2", "k"), ("hunter2hunter2", "v", "[secret]")]
        {
            let messages = response_warnings.map_warnings("volume context", &map(key, value));
            assert_eq!(messages.len(), 1);
            assert!(
                messages.iter().all(|notice| notice.contains(&format!("under the key \"{expected_key}\"")))
            );
        }
        assert_eq!(response_warnings.map_warnings("volume context", &map("k", "v")), Vec::<String>::new());
    }
}
