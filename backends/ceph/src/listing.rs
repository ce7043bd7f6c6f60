//! Lists of images.
//!
//! The dashboard keeps the names of a pool's images for 30 s, and reads each listed image anew. The driver adds the
//! images that the dashboard has created since then: they are in its list of tasks for at least 60 s. Images that
//! other programs create are listed up to 30 s later.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_guest::{Result, StorageError, http::Request};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    client::{Ceph, read},
    images::{Image, ImageSpec},
};

/// Images of one request. An image has about 6 KiB of JSON.
const PAGE: usize = 100;

#[derive(Deserialize)]
struct PoolImages {
    value: Vec<Listed>,
}

/// An image of a list, or one whose deletion was interrupted.
#[derive(Deserialize)]
#[serde(untagged)]
enum Listed {
    Removing {
        #[serde(rename = "deferment_end_time")]
        _deferment_end_time: String,
    },
    Image(Box<Image>),
}

#[derive(Deserialize)]
struct Tasks {
    executing_tasks: Vec<Task>,
    finished_tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Task {
    name: String,
    metadata: Value,
    #[serde(default)]
    success: bool,
}

impl Ceph {
    /// The images of the pools whose names have the prefix, by their handles.
    pub(crate) fn images(&self, prefix: &str) -> Result<BTreeMap<String, Image>> {
        let mut images = BTreeMap::new();
        for pool in self.pools() {
            let mut offset = 0;
            loop {
                let (page, total) = self.page(pool, prefix, offset)?;
                for listed in page.into_iter().flat_map(|pool| pool.value) {
                    if let Listed::Image(image) = listed
                        && image.name.starts_with(prefix)
                        && image.namespace.as_deref().unwrap_or_default().is_empty()
                    {
                        images.insert(image.spec().to_string(), *image);
                    }
                }
                offset += PAGE;
                if offset >= total {
                    break;
                }
            }
        }
        for spec in self.recent(prefix)? {
            let handle = spec.to_string();
            if !images.contains_key(&handle)
                && let Some(image) = self.image(&spec)?
            {
                images.insert(handle, image);
            }
        }
        Ok(images)
    }

    /// A part of the images of a pool, and the number of all.
    fn page(&self, pool: &str, prefix: &str, offset: usize) -> Result<(Vec<PoolImages>, usize)> {
        let response = self.send_to("2.0", &["block", "image"], |url| {
            let request = Request::get(url).query("pool_name", pool).query("search", prefix);
            Ok(request.query("offset", &offset.to_string()).query("limit", &PAGE.to_string()))
        })?;
        let total = response.header("x-total-count").map(str::parse);
        let images = read(response)?;
        match total {
            Some(Ok(total)) => Ok((images, total)),
            Some(Err(_)) | None => Err(StorageError::unavailable(
                "the dashboard's list of images has no number in the header `x-total-count`",
            )),
        }
    }

    /// The images that the dashboard has created lately, and not deleted again.
    fn recent(&self, prefix: &str) -> Result<Vec<ImageSpec>> {
        let Tasks { executing_tasks, finished_tasks } = self.get(&["task"], &[("name", "rbd/*")])?;
        let (mut created, mut seen) = (Vec::new(), BTreeSet::new());
        // The latest task is the first.
        for Task { name, metadata, success } in executing_tasks.into_iter().chain(finished_tasks) {
            let text = |key| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
            let handle = match name.as_str() {
                "rbd/create" => format!("{}/{}", text("pool_name"), text("image_name")),
                "rbd/clone" => format!("{}/{}", text("child_pool_name"), text("child_image_name")),
                "rbd/delete" if success => text("image_spec").to_owned(),
                _ => continue,
            };
            let Some(spec) = self.spec(&handle).filter(|spec| spec.name.starts_with(prefix)) else {
                continue;
            };
            if seen.insert(handle) && name != "rbd/delete" {
                created.push(spec);
            }
        }
        Ok(created)
    }
}
