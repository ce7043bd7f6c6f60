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
pub(super) struct Told {
    id: AtomicBool,
    map: AtomicBool,
}

/// Looks at what a driver returns of one call, and says in the log what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    driver: DriverName,
    redactor: Redactor,
    told: Arc<Told>,
}

impl Watch {
    pub(super) fn new(driver: DriverName, redactor: Redactor, told: Arc<Told>) -> Self {
        Self { driver, redactor, told }
    }

    /// Looks at an id.
    pub(super) fn id(&self, what: &str, id: &str) {
        self.tell(self.about_id(what, id));
    }

    /// Looks at a map.
    pub(super) fn map(&self, what: &str, map: &Parameters) {
        self.tell(self.about_map(what, map));
    }

    fn tell(&self, notices: Vec<String>) {
        for notice in notices {
            tracing::warn!(driver = %self.driver, "the CSI driver returns {notice}");
        }
    }

    fn about_id(&self, what: &str, id: &str) -> Vec<String> {
        let most = ResponseLimits::CSI_SPEC.max_id_bytes;
        let leak = self.redactor.contains_long_secret(id).then(|| {
            let id = self.blotted(id);
            format!("a secret of the call in the {what} {id:?}, which everybody can read")
        });
        leak.into_iter().chain(self.long(what, id.len(), most, &self.told.id)).collect()
    }

    fn about_map(&self, what: &str, map: &Parameters) -> Vec<String> {
        let (bytes, most) = (checks::total_bytes(map), ResponseLimits::CSI_SPEC.max_map_bytes);
        let leaks = |(key, value): &(&String, &String)| {
            self.redactor.contains_long_secret(key) || self.redactor.contains_long_secret(value)
        };
        let leaks = map.iter().filter(leaks).map(|(key, _)| {
            let key = self.blotted(key);
            format!("a secret of the call in the {what} under the key {key:?}, where everybody can read it")
        });
        leaks.chain(self.long(what, bytes, most, &self.told.map)).collect()
    }

    fn blotted(&self, text: &str) -> String {
        printable(&self.redactor.redact_escaped(text))
    }

    /// That something is longer than CSI allows, once.
    fn long(&self, what: &str, bytes: usize, most: usize, told: &AtomicBool) -> Option<String> {
        let first = bytes > most && !told.swap(true, Ordering::Relaxed);
        first.then(|| format!("a {what} of {bytes} bytes; CSI allows {most}"))
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::storage::{Secret, Secrets};

    use super::*;

    fn watch() -> Watch {
        let secrets: Secrets = [("password".to_owned(), Secret::new("hunter2hunter2"))].into_iter().collect();
        Watch::new("a.example".into(), Redactor::new(secrets), Arc::default())
    }

    fn map(key: &str, value: &str) -> Parameters {
        [(key.to_owned(), value.to_owned())].into()
    }

    #[test]
    fn what_is_longer_than_csi_allows_is_told_once() {
        let watch = watch();
        assert_eq!(watch.about_id("volume handle", &"x".repeat(128)), Vec::<String>::new());
        let notices = watch.about_id("volume handle", &"x".repeat(165));
        assert_eq!(notices, ["a volume handle of 165 bytes; CSI allows 128"]);
        assert_eq!(watch.about_id("volume handle", &"x".repeat(166)), Vec::<String>::new());
        assert_eq!(watch.about_map("volume context", &map("k", &"x".repeat(4_095))), Vec::<String>::new());
        let notices = watch.about_map("volume context", &map("k", &"x".repeat(4_096)));
        assert_eq!(notices, ["a volume context of 4097 bytes; CSI allows 4096"]);
        assert_eq!(watch.about_map("volume context", &map("k", &"x".repeat(4_096))), Vec::<String>::new());
    }

    #[test]
    fn secrets_are_found_wherever_they_stand_and_not_repeated() {
        let watch = watch();
        assert_eq!(
            watch.about_id("volume handle", "u:hunter2hunter2@array"),
            ["a secret of the call in the volume handle \"u:[secret]@array\", which everybody can read"]
        );
        for (key, value, shown) in [("k", "hunter2hunter2", "k"), ("hunter2hunter2", "v", "[secret]")] {
            let notices = watch.about_map("volume context", &map(key, value));
            assert_eq!(notices.len(), 1);
            assert!(notices.iter().all(|notice| notice.contains(&format!("under the key \"{shown}\""))));
        }
        assert_eq!(watch.about_map("volume context", &map("k", "v")), Vec::<String>::new());
    }
}
