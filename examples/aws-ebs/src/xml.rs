//! The answers of EC2.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A page of the items that an action describes. Each action has its own name for the list.
#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(crate) struct Page<T> {
    #[serde(alias = "volumeSet", alias = "snapshotSet", alias = "volumeModificationSet")]
    #[serde(deserialize_with = "list")]
    pub(crate) items: Vec<T>,
    #[serde(rename = "nextToken")]
    pub(crate) next_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Volume {
    pub(crate) volume_id: String,
    /// `creating`, `available`, `in-use`, `deleting`, `deleted` or `error`.
    pub(crate) status: String,
    /// In GiB.
    pub(crate) size: u64,
    pub(crate) volume_type: String,
    /// Operations per second, a number.
    pub(crate) iops: Option<String>,
    /// In MiB per second, a number.
    pub(crate) throughput: Option<String>,
    /// Empty if the volume was created empty.
    #[serde(default)]
    pub(crate) snapshot_id: String,
    pub(crate) availability_zone: String,
    #[serde(with = "cofferdam_guest::time::rfc3339")]
    pub(crate) create_time: Duration,
    #[serde(default, deserialize_with = "list")]
    pub(crate) attachment_set: Vec<Attachment>,
    #[serde(default, deserialize_with = "list")]
    pub(crate) tag_set: Vec<Tag>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attachment {
    pub(crate) instance_id: String,
    /// Such as `/dev/xvdba`.
    pub(crate) device: String,
    /// `attaching`, `attached`, `busy`, `detaching` or `detached`.
    pub(crate) status: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Snapshot {
    pub(crate) snapshot_id: String,
    pub(crate) volume_id: String,
    /// `pending`, `completed` or `error`.
    pub(crate) status: String,
    /// In GiB.
    pub(crate) volume_size: u64,
    #[serde(with = "cofferdam_guest::time::rfc3339")]
    pub(crate) start_time: Duration,
    #[serde(default, deserialize_with = "list")]
    pub(crate) tag_set: Vec<Tag>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Modification {
    /// `modifying`, `optimizing`, `completed` or `failed`.
    pub(crate) modification_state: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Tag {
    pub(crate) key: String,
    pub(crate) value: String,
}

/// An answer of which nothing matters but that EC2 gave it.
#[derive(Deserialize)]
pub(crate) struct Done {
    #[serde(rename = "requestId")]
    _request_id: String,
}

#[derive(Deserialize)]
pub(crate) struct Refusal {
    #[serde(rename = "Errors", deserialize_with = "list")]
    pub(crate) errors: Vec<Error>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Error {
    /// Such as `InvalidVolume.NotFound`.
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Reads a list: `<volumeSet><item>…</item><item>…</item></volumeSet>`.
fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    struct List<T> {
        #[serde(alias = "Error", default = "Vec::new")]
        item: Vec<T>,
    }
    List::deserialize(deserializer).map(|list| list.item)
}
