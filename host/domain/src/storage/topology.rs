//! Topology requirements, and their JSON in the intent journal.

use serde::{Deserialize, Serialize};

use crate::parameters::Segments;

/// Number of requisite segments above which a preference that is their rotation is written as an offset. The
/// API server limits ConfigMaps to 1 MiB, and a driver with a segment for each node has thousands.
const MAX_WRITTEN_TWICE: usize = 16;

/// CSI `TopologyRequirement`: the segments from which a volume must be accessible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Json", try_from = "Json")]
pub struct TopologyRequirement {
    /// The volume must be accessible from at least one of these segments.
    pub requisite: Vec<Segments>,
    /// Segments in order of preference.
    pub preferred: Vec<Segments>,
}

/// The JSON of a [`TopologyRequirement`]: with `preferred` or with `preferred_from`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    requisite: Vec<Segments>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preferred: Option<Vec<Segments>>,
    /// Index of the requisite segments that are preferred most. The ones after it follow in their order, then
    /// those before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preferred_from: Option<usize>,
}

impl From<TopologyRequirement> for Json {
    fn from(TopologyRequirement { requisite, preferred }: TopologyRequirement) -> Self {
        let preferred_from = match requisite.len() > MAX_WRITTEN_TWICE {
            true => rotation(&requisite, &preferred),
            false => None,
        };
        let preferred = preferred_from.is_none().then_some(preferred);
        Self { requisite, preferred, preferred_from }
    }
}

/// The JSON has no preference, two, or one from an index that does not exist.
#[derive(Debug, thiserror::Error)]
#[error(
    "topology with {requisite} requisite segments: expected either `preferred` or a `preferred_from` below their number"
)]
struct InvalidPreference {
    requisite: usize,
}

impl TryFrom<Json> for TopologyRequirement {
    type Error = InvalidPreference;

    fn try_from(Json { requisite, preferred, preferred_from }: Json) -> Result<Self, InvalidPreference> {
        let preferred = match (preferred, preferred_from) {
            (Some(preferred), None) => preferred,
            (None, Some(first)) if first < requisite.len() => {
                let mut preferred = requisite.clone();
                preferred.rotate_left(first);
                preferred
            }
            (Some(_), Some(_)) | (None, Some(_) | None) => {
                return Err(InvalidPreference { requisite: requisite.len() });
            }
        };
        Ok(Self { requisite, preferred })
    }
}

/// The number of places by which `preferred` is `requisite` rotated to the left; `None` if it is no rotation.
fn rotation(requisite: &[Segments], preferred: &[Segments]) -> Option<usize> {
    let most_preferred = preferred.first()?;
    let first = requisite.iter().position(|segments| segments == most_preferred)?;
    let (before, after) = requisite.split_at(first);
    (requisite.len() == preferred.len() && after.iter().chain(before).eq(preferred)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(count: usize) -> Vec<Segments> {
        (0..count).map(|n| Segments::from([("example/node".to_owned(), format!("node-{n}"))])).collect()
    }

    fn rotated(count: usize, first: usize) -> TopologyRequirement {
        let (requisite, mut preferred) = (segments(count), segments(count));
        preferred.rotate_left(first);
        TopologyRequirement { requisite, preferred }
    }

    #[test]
    fn many_segments_are_written_once() {
        let reversed = TopologyRequirement {
            requisite: segments(20),
            preferred: segments(20).into_iter().rev().collect(),
        };
        let repeated = TopologyRequirement {
            requisite: [segments(20), segments(20)].concat(),
            preferred: [segments(20), segments(20)].concat(),
        };
        for (name, requirement, expected) in [
            ("few", rotated(16, 3), None),
            ("many", rotated(17, 3), Some(3)),
            ("first", rotated(17, 0), Some(0)),
            ("last", rotated(3_000, 2_999), Some(2_999)),
            ("another order", reversed, None),
            ("one preferred", TopologyRequirement { preferred: segments(1), ..rotated(17, 0) }, None),
            ("none preferred", TopologyRequirement { preferred: Vec::new(), ..rotated(17, 0) }, None),
            ("repeated", repeated, Some(0)),
            ("empty", TopologyRequirement::default(), None),
        ] {
            let json = serde_json::to_value(&requirement).unwrap();
            assert_eq!(json.get("preferred_from").and_then(serde_json::Value::as_u64), expected, "{name}");
            assert_eq!(json.get("preferred").is_none(), expected.is_some(), "{name}");
            assert_eq!(serde_json::from_value::<TopologyRequirement>(json).unwrap(), requirement, "{name}");
        }
    }

    #[test]
    fn a_topology_needs_one_preference() {
        for json in [
            r#"{"requisite": [{}]}"#,
            r#"{"requisite": [{}], "preferred": [], "preferred_from": 0}"#,
            r#"{"requisite": [{}], "preferred_from": 1}"#,
            r#"{"requisite": [], "preferred_from": 0}"#,
            r#"{"requisite": [], "preferred": [], "other": 0}"#,
        ] {
            assert!(serde_json::from_str::<TopologyRequirement>(json).is_err(), "{json}");
        }
    }
}
