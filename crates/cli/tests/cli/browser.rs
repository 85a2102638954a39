//! A headless Chromium, driven by its WebDriver.

use super::support::{PATIENCE, soon, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// Texts whose contrast with their ground is below 4.5 (WCAG 2.2, 1.4.3).
pub const FAINT: &str = r"
    const parse = (text) => {
        const numbers = text.match(/[-\d.e]+/g).map(Number);
        const scale = text.startsWith('color') ? 255 : 1;
        return [...numbers.slice(0, 3).map((number) => number * scale), numbers[3] ?? 1];
    };
    const light = (colour) => {
        const [r, g, b] = colour.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (node) => {
        const colour = node ? parse(getComputedStyle(node).backgroundColor) : [255, 255, 255, 1];
        if (colour[3] === 1) return colour;
        const behind = ground(node.parentElement);
        return [...[0, 1, 2].map((at) => colour[at] * colour[3] + behind[at] * (1 - colour[3])), 1];
    };
    const faint = [];
    for (const node of document.querySelectorAll('body *')) {
        const words = [...node.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data.trim()).join('');
        if (!words || !node.checkVisibility() || node.closest('script, style, noscript, .skip')) continue;
        const [one, other] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => b - a);
        const ratio = (one + 0.05) / (other + 0.05);
        if (ratio < 4.5) faint.push(`${words.slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return faint;
";

pub struct Browser {
    http: reqwest::Client,
    /// Of its session.
    url: String,
    driver: Child,
    profile: tempfile::TempDir,
}

impl Browser {
    /// `None`: Chromium or its driver is not installed.
    pub async fn start() -> Option<Self> {
        for program in ["chromium", "chromedriver"] {
            let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if !soon(program, version).await.is_ok_and(|status| status.success()) {
                return None;
            }
        }
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("it is installed");
        let mut lines = BufReader::new(driver.stdout.take().expect("piped")).lines();
        let port = loop {
            let line = soon("the driver's port", lines.next_line()).await.expect("text").expect("it says its port");
            if let Some((_, port)) = line.split_once("successfully on port ") {
                break port.trim_end_matches('.').to_owned();
            }
        };
        let http = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build().expect("a client");
        let profile = tempfile::tempdir().expect("a folder");
        let folder = format!("--user-data-dir={}", profile.path().display());
        let arguments = [
            "--headless=new",
            // Tests may run as root, and the page is this repository's own.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--hide-scrollbars",
            &folder,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let base = format!("http://127.0.0.1:{port}/session");
        let mut browser = Self { http, url: base, driver, profile };
        let session = browser.post("", wanted).await;
        browser.url = format!("{}/{}", browser.url, session["sessionId"].as_str().expect("a session"));
        Some(browser)
    }

    async fn post(&self, what: &str, body: Value) -> Value {
        let request = self.http.post(format!("{}{what}", self.url)).json(&body);
        let answer: Value = request.send().await.expect("the driver answers").json().await.expect("JSON");
        assert!(answer["value"].get("error").is_none(), "{what} {body}: {}", answer["value"]);
        answer["value"].clone()
    }

    /// Calls Chromium's debugger.
    async fn call(&self, command: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await
    }

    pub async fn open(&self, url: &str) {
        self.post("/url", json!({ "url": url })).await;
    }

    /// The result of a function's body.
    pub async fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// Waits until an expression is true.
    pub async fn wait(&self, what: &str, expression: &str) {
        until(what, async || (self.run(&format!("return {expression};")).await == true).then_some(())).await;
    }

    /// Presses keys where the focus is. Special keys are in Unicode's private area, as WebDriver has them.
    pub async fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() })))
            .collect();
        self.post("/actions", json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] })).await;
    }

    /// Makes the window so large, and the system's preference this one.
    pub async fn look(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Keeps a picture of the whole page, if `CENOTE_TEST_PICTURES` names a folder.
    pub async fn keep_picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("CENOTE_TEST_PICTURES") else { return };
        let picture = self.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true })).await;
        let file = std::fs::File::create(std::path::Path::new(&folder).join(format!("{name}.png")));
        let mut decoder = Command::new("base64")
            .arg("--decode")
            .stdin(Stdio::piped())
            .stdout(file.expect("the folder is there"))
            .spawn()
            .expect("a part of coreutils");
        let mut input = decoder.stdin.take().expect("piped");
        input.write_all(picture["data"].as_str().expect("a picture").as_bytes()).await.expect("it reads");
        drop(input);
        assert!(soon("the picture", decoder.wait()).await.is_ok_and(|status| status.success()));
    }

    /// What was written to the console since the last call.
    pub async fn console(&self) -> Vec<Value> {
        self.post("/se/log", json!({ "type": "browser" })).await.as_array().expect("a list").clone()
    }

    /// Ends the browser, with its driver.
    pub async fn stop(mut self) {
        let ended = self.http.delete(&self.url).send().await;
        assert!(ended.is_ok_and(|answer| answer.status().is_success()));
        soon("the driver's end", self.driver.kill()).await.expect("it is our child");
    }
}

impl Drop for Browser {
    /// After a failed test, ends the browser, which would outlive its driver. No other process names its
    /// profile.
    fn drop(&mut self) {
        let profile = self.profile.path().as_os_str().as_encoded_bytes();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if let Some(pid) = pid
                && words.windows(profile.len()).any(|part| part == profile)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
