//! Volumes that do not exist, or no more.

use cofferdam_domain::{VolumeHandle, storage::ErrorKind};

use super::sized;
use crate::{
    bench::Bench,
    check::{Checked, done, holds, refused},
};

pub(super) async fn delete_is_idempotent(bench: &Bench) -> Checked {
    let (_, volume) = bench.volume("deleted-twice").await?;
    done("delete", bench.delete(&volume.handle).await)?;
    done("the same delete again", bench.delete(&volume.handle).await)?;
    let again = bench.delete_at(&bench.twin(), &volume.handle).await;
    done("the same delete at another process", again)
}

pub(super) async fn delete_unknown(bench: &Bench) -> Checked {
    let plain = bench.name("never-made");
    let handles = [
        plain.as_str(),
        "/",
        "../../etc/passwd",
        "größe 🦀",
        "line\nbreak",
        "00000000-0000-0000-0000-000000000000",
        &"h".repeat(128),
        &"h".repeat(10_000),
    ]
    .map(VolumeHandle::from);
    for handle in handles {
        let answer = bench.delete(&handle).await;
        let shown: String = handle.as_str().chars().take(40).collect();
        done(&format!("deleting the unknown handle {shown:?}"), answer)?;
    }
    Ok(())
}

pub(super) async fn delete_deletes(bench: &Bench) -> Checked {
    let (request, volume) = bench.volume("gone").await?;
    done("delete", bench.delete(&volume.handle).await)?;
    let answer = bench.validate(&volume, &request.capabilities).await;
    refused("validating a deleted volume", &answer, &[ErrorKind::NotFound])
}

pub(super) async fn create_after_delete(bench: &Bench) -> Checked {
    let (request, volume) = bench.volume("reborn").await?;
    done("delete", bench.delete(&volume.handle).await)?;
    let size = volume.capacity.unwrap_or(bench.options.size).saturating_mul(2);
    let reborn = done(
        "a create with the name of a deleted volume and twice its size",
        bench.create(&sized(&request, Some(size), None)).await,
    )?;
    let fits = reborn.capacity.is_none_or(|bytes| bytes >= size);
    holds(fits, || format!("a new volume of {size} bytes"), || format!("{:?} bytes", reborn.capacity))
}

pub(super) async fn validate_missing(bench: &Bench) -> Checked {
    let capability = std::slice::from_ref(&bench.options.capability);
    let answer = bench.validate(&bench.ghost(), capability).await;
    refused("validating a volume that does not exist", &answer, &[ErrorKind::NotFound])
}
