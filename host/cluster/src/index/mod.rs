//! Secondary indexes of the cached kinds.

mod claim;
mod key_set;
mod object_table;
mod pod;
mod reference_counts;
mod secondary_index;
mod small_set;
mod traits;
mod volume;
mod volume_attachment;
mod volume_snapshot;

pub use claim::ClaimIndex;
pub use object_table::ObjectTable;
pub use pod::PodIndex;
pub use traits::{Index, Indexed};
pub use volume::VolumeIndex;
pub use volume_attachment::VolumeAttachmentIndex;
pub use volume_snapshot::{VolumeSnapshotContentIndex, VolumeSnapshotIndex};
