//! Configuration of the `pool` import.

use std::{fmt, path::PathBuf};

use cofferdam_domain::quantity::Quantity;
use serde::{Deserialize, Deserializer, Serialize, de};

/// A backend's pool: `[backend.NAME.pool]`. It grants the import `pool`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PoolConfig {
    /// The directory. It must exist, and only this backend may use it.
    pub directory: PathBuf,
    /// Maximum bytes of all images together, each with its full size; the filesystem's size if absent.
    #[serde(default, deserialize_with = "deserialize_bytes")]
    pub capacity: Option<u64>,
    /// Maximum bytes of one image; if absent, only the capacity limits it.
    #[serde(default, deserialize_with = "deserialize_bytes")]
    pub image_bytes_max: Option<u64>,
}

/// Reads a number of bytes, or a quantity as Kubernetes writes it.
fn deserialize_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number of bytes, or a text such as \"100Gi\"")
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
            u64::try_from(value).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<u64, E> {
            let quantity = Quantity::parse(value).map_err(E::custom)?;
            quantity
                .bytes_within_int64()
                .ok_or_else(|| E::custom(format!("{value:?} is more than 2^63 - 1 bytes")))
        }
    }
    deserializer.deserialize_any(Visitor).map(Some)
}
