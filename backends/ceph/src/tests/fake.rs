//! A dashboard that answers as that of Ceph 16.2.15 did.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use cofferdam_guest::{
    http::{Method, Response, decode},
    mock::{InstalledHost, MockHost, ReceivedRequest},
};
use serde_json::{Value, json};

use crate::record;

pub(crate) const PASSWORD: &str = "s3cret-of-the-dashboard";
const TIME: &str = "2026-11-30T13:16:26Z";

#[derive(Debug, Default)]
pub(crate) struct FakeImage {
    pub(crate) size: u64,
    pub(crate) record: Option<String>,
    /// Image and snapshot.
    pub(crate) parent: Option<(String, String)>,
    /// Size, and whether the snapshot is protected.
    pub(crate) snapshots: BTreeMap<String, (u64, bool)>,
    pub(crate) is_open: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Dashboard {
    pub(crate) images: BTreeMap<String, FakeImage>,
    /// The names that the list has, if the cache is older than the images.
    pub(crate) listed: Option<Vec<String>>,
    /// Created images, the latest first.
    pub(crate) tasks: Vec<Value>,
    /// The number of logins, which is also part of the token.
    pub(crate) logins: u32,
    /// The dashboard fails before it sets the options of a new image.
    pub(crate) fails_after_create: bool,
}

pub(crate) type SharedDashboard = Rc<RefCell<Dashboard>>;

pub(crate) fn start() -> (InstalledHost, SharedDashboard) {
    let dashboard = SharedDashboard::default();
    let host = MockHost::new().setting("url", "http://ceph").setting("user", "cofferdam");
    let host = host.setting("pool", "rbd").setting("pools", "fast").secret("password", PASSWORD);
    let methods = [Method::Get, Method::Post, Method::Put, Method::Delete];
    let host = methods.into_iter().fold(host, |host, method| {
        let dashboard = Rc::clone(&dashboard);
        host.on(method, "http://ceph/api/", move |request| Ok(dashboard.borrow_mut().handle(request)))
    });
    (host.install(), dashboard)
}

fn answer(status: u16, body: &Value) -> Response {
    Response::new(status).with_header("content-type", "application/json").with_body(body.to_string())
}

fn refuse(errno: u16, detail: &str) -> Response {
    let detail = format!("[errno {errno}] {detail}");
    answer(400, &json!({ "detail": detail, "code": errno.to_string(), "component": "rbd" }))
}

fn missing() -> Response {
    answer(404, &json!({ "status": "404 Not Found", "detail": "Image not found" }))
}

fn done() -> Response {
    answer(200, &Value::Null)
}

impl Dashboard {
    fn handle(&mut self, request: &ReceivedRequest) -> Response {
        let path =
            request.url.strip_prefix("http://ceph/api/").unwrap().split('?').next().unwrap().to_owned();
        let path: Vec<String> = path.split('/').map(decode).collect();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if path == ["auth"] {
            if body["password"] != PASSWORD {
                return answer(
                    400,
                    &json!({ "detail": "Invalid credentials", "code": "invalid_credentials" }),
                );
            }
            self.logins += 1;
            return answer(201, &json!({ "token": format!("token-number-{}", self.logins) }));
        }
        if request.header("authorization") != Some(&format!("Bearer token-number-{}", self.logins)) {
            return answer(401, &json!({ "detail": "You are not authorized" }));
        }
        match (request.method, path.as_slice()) {
            (Method::Get, ["monitor"]) => answer(
                200,
                &json!({ "mon_status": { "monmap": { "fsid": "f-1", "mons": [
                    { "public_addr": "10.0.0.1:6789/0" }, { "public_addr": "10.0.0.2:6789/0" },
                ] } } }),
            ),
            (Method::Get, ["pool", "rbd"]) => {
                answer(200, &json!({ "stats": { "max_avail": { "latest": 7 } } }))
            }
            (Method::Get, ["task"]) => {
                answer(200, &json!({ "executing_tasks": [], "finished_tasks": self.tasks }))
            }
            (Method::Get, ["block", "image"]) => self.list(request),
            (Method::Post, ["block", "image"]) => self.create(&body),
            (method, ["block", "image", image]) => self.image(method, image, &body),
            (method, ["block", "image", image, rest @ ..]) => self.snapshot(method, image, rest, &body),
            other => panic!("unexpected request {other:?}"),
        }
    }

    fn json(&self, handle: &str) -> Option<Value> {
        let image = self.images.get(handle)?;
        let (pool, name) = handle.split_once('/')?;
        let children = |snapshot: &String| {
            let is_child =
                |parent: &Option<(String, String)>| *parent == Some((handle.to_owned(), snapshot.clone()));
            let children = self.images.iter().filter(|(_, image)| is_child(&image.parent));
            let children = children.map(|(child, _)| child.split_once('/').unwrap());
            children.map(|(pool, name)| json!({ "pool_name": pool, "image_name": name })).collect::<Vec<_>>()
        };
        let snapshots = image.snapshots.iter().map(|(name, (size, _))| {
            json!({ "name": name, "size": size, "timestamp": TIME, "children": children(name) })
        });
        let parent = image.parent.as_ref().map(|(parent, snapshot)| {
            let (pool, name) = parent.split_once('/').unwrap();
            json!({ "pool_name": pool, "image_name": name, "snap_name": snapshot })
        });
        let value = image.record.clone().unwrap_or_default();
        Some(json!({
            "pool_name": pool, "namespace": null, "name": name, "id": "1a2b", "size": image.size,
            "timestamp": TIME, "parent": parent, "snapshots": snapshots.collect::<Vec<_>>(),
            "configuration": [{ "name": record::OPTION, "value": value, "source": 2 }],
        }))
    }

    fn list(&self, request: &ReceivedRequest) -> Response {
        assert_eq!(request.header("accept"), Some("application/vnd.ceph.api.v2.0+json"));
        let query: BTreeMap<String, String> = request.query().into_iter().collect();
        let names = self.listed.clone().unwrap_or_else(|| self.images.keys().cloned().collect());
        let is_in_pool = |name: &&String| name.starts_with(&format!("{}/", query["pool_name"]));
        let names: Vec<_> = names.iter().filter(is_in_pool).collect();
        let page = names.iter().skip(query["offset"].parse().unwrap()).take(query["limit"].parse().unwrap());
        let images: Vec<_> = page.filter_map(|name| self.json(name)).collect();
        let total = names.len().to_string();
        answer(200, &json!([{ "pool_name": "rbd", "value": images }])).with_header("X-Total-Count", &total)
    }

    fn add(&mut self, handle: String, image: FakeImage, body: &Value) -> Response {
        if self.images.contains_key(&handle) {
            return refuse(17, "RBD image already exists");
        }
        let record = body["configuration"][record::OPTION].as_str().map(str::to_owned);
        let record = record.filter(|_| !self.fails_after_create);
        self.images.insert(handle, FakeImage { record, ..image });
        if self.fails_after_create { answer(500, &json!({ "detail": "the manager ended" })) } else { done() }
    }

    fn create(&mut self, body: &Value) -> Response {
        let (pool, name) = (body["pool_name"].as_str().unwrap(), body["name"].as_str().unwrap());
        let metadata = json!({ "pool_name": pool, "namespace": null, "image_name": name });
        self.tasks.insert(0, json!({ "name": "rbd/create", "metadata": metadata, "success": true }));
        let image = FakeImage { size: body["size"].as_u64().unwrap(), ..FakeImage::default() };
        self.add(format!("{pool}/{name}"), image, body)
    }

    fn image(&mut self, method: Method, handle: &str, body: &Value) -> Response {
        let Some(image) = self.images.get_mut(handle) else { return missing() };
        match method {
            Method::Get => answer(200, &self.json(handle).unwrap()),
            Method::Put => {
                image.size = body["size"].as_u64().unwrap_or(image.size);
                let record = body["configuration"][record::OPTION].as_str();
                image.record = record.map(str::to_owned).or(image.record.take());
                done()
            }
            Method::Delete if image.is_open => refuse(16, "RBD image is busy"),
            Method::Delete => {
                self.images.remove(handle);
                Response::new(204)
            }
            Method::Head | Method::Post | Method::Patch | Method::Options => panic!("unexpected {method:?}"),
        }
    }

    fn snapshot(&mut self, method: Method, handle: &str, path: &[&str], body: &Value) -> Response {
        let has_children = |name: &str| {
            let parent = Some((handle.to_owned(), name.to_owned()));
            self.images.values().any(|image| image.parent == parent)
        };
        let has_children = path.get(1).is_some_and(|name| has_children(name));
        let Some(image) = self.images.get_mut(handle) else { return missing() };
        match (method, path) {
            (_, ["flatten"]) => {
                image.parent = None;
                done()
            }
            (_, ["snap"]) => {
                let name = body["snapshot_name"].as_str().unwrap().to_owned();
                if image.snapshots.contains_key(&name) {
                    return refuse(17, "RBD image already exists");
                }
                image.snapshots.insert(name, (image.size, false));
                answer(201, &Value::Null)
            }
            (Method::Put, ["snap", name]) => {
                let protect = body["is_protected"] == true;
                if !protect && has_children {
                    return refuse(16, "RBD image is busy");
                }
                image.snapshots.get_mut(*name).unwrap().1 = protect;
                done()
            }
            (Method::Delete, ["snap", name]) => {
                assert!(!image.snapshots.remove(*name).unwrap().1, "a protected snapshot");
                Response::new(204)
            }
            (_, ["snap", name, "clone"]) => {
                let (size, is_protected) = image.snapshots[*name];
                assert!(is_protected, "a clone needs a protected snapshot");
                let (pool, child) = (&body["child_pool_name"], &body["child_image_name"]);
                let child = format!("{}/{}", pool.as_str().unwrap(), child.as_str().unwrap());
                let parent = Some((handle.to_owned(), (*name).to_owned()));
                self.add(child, FakeImage { size, parent, ..FakeImage::default() }, body)
            }
            other => panic!("unexpected request {other:?}"),
        }
    }
}
