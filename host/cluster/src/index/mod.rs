//! Secondary indexes of the cached kinds.

mod claim;
mod key_set;
mod pod;
mod reference_counts;
mod small_set;
mod traits;
mod volume;
mod volume_attachment;
mod volume_snapshot;

pub use claim::ClaimIndex;
pub use pod::PodIndex;
pub use traits::{Index, Indexed};
pub use volume::VolumeIndex;
pub use volume_attachment::VolumeAttachmentIndex;
pub use volume_snapshot::{VolumeSnapshotContentIndex, VolumeSnapshotIndex};
