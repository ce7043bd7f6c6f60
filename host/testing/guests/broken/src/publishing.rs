//! Publish and unpublish.

use cofferdam_guest::{
    ConnectionInfo, Result, StorageError, VolumeHandle,
    abilities::{PublishRequest, Publishing},
    settings,
};

use crate::{BrokenDriver, busy_wait, db, is_broken, is_broken_for, nonce, request, volumes_per_node};

impl Publishing for BrokenDriver {
    fn publish(wanted: PublishRequest) -> Result<ConnectionInfo> {
        let name = db::name_of(&wanted.handle)?;
        if is_broken_for("crashes/publish", &name, "dying-publish") {
            return db::with_marker(&format!("publishing/{}", wanted.handle), || publish(&wanted));
        }
        if is_broken_for("concurrency/two-nodes", &name, "contested") {
            return publish_without_lock(&wanted);
        }
        publish(&wanted)
    }

    fn unpublish(handle: VolumeHandle, node: Option<String>) -> Result<()> {
        if is_broken_for("crashes/unpublish", &db::name_of(&handle)?, "dying-unpublish") {
            return db::with_marker(&format!("unpublishing/{handle}"), || unpublish(&handle, node.as_ref()));
        }
        unpublish(&handle, node.as_ref())
    }
}

/// Publishes a volume unless it is published. The check and the change are separate transactions: concurrent
/// calls publish it to two nodes.
fn publish_without_lock(wanted: &PublishRequest) -> Result<ConnectionInfo> {
    if db::load()?.volumes.get(&wanted.handle).is_some_and(|found| !found.published.is_empty()) {
        return Err(StorageError::failed_precondition("it is published to another node"));
    }
    busy_wait();
    let capability = request::format_capability(&wanted.capability)?;
    db::update(|db| {
        if let Some(found) = db.volumes.get_mut(&wanted.handle) {
            found.published.insert(wanted.node.clone(), capability.clone());
        }
        Ok(ConnectionInfo::none())
    })
}

fn publish(wanted: &PublishRequest) -> Result<ConnectionInfo> {
    if settings::get("nodes").is_some_and(|nodes| !nodes.split(' ').any(|node| node == wanted.node)) {
        return Err(StorageError::not_found(format!("there is no node {:?}", wanted.node)));
    }
    let mut capability = request::format_capability(&wanted.capability)?;
    if wanted.read_only && !is_broken("features/publish-readonly") {
        capability.push_str(" read-only");
    }
    let is_multi_node = request::is_multi_node(&wanted.capability);
    let name = db::update(|db| {
        let volumes_on_node =
            db.volumes.values().filter(|found| found.published.contains_key(&wanted.node)).count();
        let is_full = volumes_per_node()
            .is_some_and(|most| volumes_on_node >= usize::try_from(most).unwrap_or(usize::MAX));
        let Some(found) = db.volumes.get_mut(&wanted.handle) else {
            if is_broken("publishing/missing-volume") {
                return Ok(String::new());
            }
            return Err(StorageError::not_found(format!("there is no volume {:?}", wanted.handle)));
        };
        if let Some(other) = found.published.get(&wanted.node) {
            let writing = !capability.contains("read-only") && !other.contains("read-only");
            if *other != capability && !(writing && is_broken("publishing/different-publish")) {
                return Err(StorageError::already_exists(format!("it is published there for {other}")));
            }
            return Ok(found.name.clone());
        }
        let is_multi_node = is_multi_node && !is_broken("publishing/many-nodes");
        if !found.published.is_empty() && !is_multi_node && !is_broken("publishing/other-node") {
            return Err(StorageError::failed_precondition("it is published to another node"));
        }
        if is_full && !is_broken("publishing/node-full") {
            return Err(StorageError::resource_exhausted("the node is full"));
        }
        found.published.insert(wanted.node.clone(), capability.clone());
        Ok(found.name.clone())
    })?;
    let mut info = connection_info();
    if is_broken_for("publishing/is-idempotent", &name, "republished") {
        info.fields = vec![("nonce".to_owned(), nonce())];
    }
    Ok(info)
}

/// The connection info of the settings `connection-kind` and `connection-fields`.
fn connection_info() -> ConnectionInfo {
    let mut info = ConnectionInfo::none();
    if let (Some(kind), Some(fields)) = (settings::get("connection-kind"), settings::get("connection-fields"))
    {
        let fields = fields.split(' ').filter_map(|field| field.split_once('='));
        info.kind = kind;
        info.fields = fields.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    }
    info
}

fn unpublish(handle: &str, node: Option<&String>) -> Result<()> {
    db::update(|db| {
        let Some(found) = db.volumes.get_mut(handle) else {
            if is_broken("publishing/unpublish-unknown") {
                return Err(StorageError::not_found("there is no such volume"));
            }
            return Ok(());
        };
        match node {
            Some(_) if is_broken("publishing/unpublish-one") => found.published.clear(),
            Some(node) => {
                let gone = found.published.remove(node);
                if gone.is_none()
                    && is_broken_for("publishing/unpublish-is-idempotent", &found.name, "unpublished")
                {
                    return Err(StorageError::not_found("it is not published there"));
                }
            }
            None if is_broken_for("publishing/unpublish-all", &found.name, "everywhere") => {}
            None => found.published.clear(),
        }
        Ok(())
    })
}
