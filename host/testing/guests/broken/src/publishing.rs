//! Publish and unpublish.

use cofferdam_guest::{
    Attachment, Result, StorageError, VolumeHandle,
    abilities::{PublishRequest, Publishing},
};

use crate::{Broken, broken, broken_for, dawdle, db, nonce, per_node, request};

impl Publishing for Broken {
    fn publish(wanted: PublishRequest) -> Result<Attachment> {
        let name = db::name_of(&wanted.handle)?;
        if broken_for("crashes/publish", &name, "dying-publish") {
            return db::marked(&format!("publishing/{}", wanted.handle), || publish(&wanted));
        }
        if broken_for("concurrency/two-nodes", &name, "contested") {
            return leap(&wanted);
        }
        publish(&wanted)
    }

    fn unpublish(handle: VolumeHandle, node: Option<String>) -> Result<()> {
        if broken_for("crashes/unpublish", &db::name_of(&handle)?, "dying-unpublish") {
            return db::marked(&format!("unpublishing/{handle}"), || unpublish(&handle, node.as_ref()));
        }
        unpublish(&handle, node.as_ref())
    }
}

/// Looks whether the volume is free, and takes it when it was.
fn leap(wanted: &PublishRequest) -> Result<Attachment> {
    if db::look()?.volumes.get(&wanted.handle).is_some_and(|found| !found.published.is_empty()) {
        return Err(StorageError::failed_precondition("it is published to another node"));
    }
    dawdle();
    let how = request::use_of(&wanted.capability)?;
    db::change(|db| {
        if let Some(found) = db.volumes.get_mut(&wanted.handle) {
            found.published.insert(wanted.node.clone(), how.clone());
        }
        Ok(Attachment::none())
    })
}

fn publish(wanted: &PublishRequest) -> Result<Attachment> {
    let mut how = request::use_of(&wanted.capability)?;
    if wanted.read_only && !broken("features/publish-readonly") {
        how.push_str(" read-only");
    }
    let many = request::many_nodes(&wanted.capability);
    let name = db::change(|db| {
        let there = db.volumes.values().filter(|found| found.published.contains_key(&wanted.node)).count();
        let full = per_node().is_some_and(|most| there >= usize::try_from(most).unwrap_or(usize::MAX));
        let Some(found) = db.volumes.get_mut(&wanted.handle) else {
            if broken("publishing/missing-volume") {
                return Ok(String::new());
            }
            return Err(StorageError::not_found(format!("there is no volume {:?}", wanted.handle)));
        };
        if let Some(other) = found.published.get(&wanted.node) {
            let writing = !how.contains("read-only") && !other.contains("read-only");
            if *other != how && !(writing && broken("publishing/other-way")) {
                return Err(StorageError::already_exists(format!("it is published there for {other}")));
            }
            return Ok(found.name.clone());
        }
        let many = many && !broken("publishing/many-nodes");
        if !found.published.is_empty() && !many && !broken("publishing/other-node") {
            return Err(StorageError::failed_precondition("it is published to another node"));
        }
        if full && !broken("publishing/node-full") {
            return Err(StorageError::resource_exhausted("the node is full"));
        }
        found.published.insert(wanted.node.clone(), how.clone());
        Ok(found.name.clone())
    })?;
    let mut attachment = Attachment::none();
    if broken_for("publishing/is-idempotent", &name, "republished") {
        attachment.fields = vec![("nonce".to_owned(), nonce())];
    }
    Ok(attachment)
}

fn unpublish(handle: &str, node: Option<&String>) -> Result<()> {
    db::change(|db| {
        let Some(found) = db.volumes.get_mut(handle) else {
            if broken("publishing/unpublish-unknown") {
                return Err(StorageError::not_found("there is no such volume"));
            }
            return Ok(());
        };
        match node {
            Some(_) if broken("publishing/unpublish-one") => found.published.clear(),
            Some(node) => {
                let gone = found.published.remove(node);
                if gone.is_none()
                    && broken_for("publishing/unpublish-is-idempotent", &found.name, "unpublished")
                {
                    return Err(StorageError::not_found("it is not published there"));
                }
            }
            None if broken_for("publishing/unpublish-all", &found.name, "everywhere") => {}
            None => found.published.clear(),
        }
        Ok(())
    })
}
