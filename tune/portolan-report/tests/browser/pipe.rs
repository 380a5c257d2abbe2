//! Chromium's process and the protocol's messages.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

/// Longest wait for an answer, for a browser that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The process, and one tab in it.
pub struct Pipe {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    /// Events that the browser sent without a request.
    events: VecDeque<Value>,
    calls: u64,
    session: Option<String>,
    profile: PathBuf,
}

impl Pipe {
    /// Starts it with an empty tab; why not.
    pub fn start() -> Result<Self, String> {
        let there = Command::new("chromium").arg("--version").output();
        if !there.is_ok_and(|output| output.status.success()) {
            return Err("chromium is not installed".to_owned());
        }
        static BROWSERS: AtomicUsize = AtomicUsize::new(0);
        let nth = BROWSERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("browser-{}-{nth}", std::process::id());
        let profile = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        // The shell puts the pipes where the protocol wants them. Pages are files that the tests wrote:
        // they need no sandbox, which containers do not allow.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null"#, "sh"]);
        command.args(["chromium", "--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--remote-debugging-pipe", "--hide-scrollbars", "--no-first-run"]);
        command.args([
            "--disable-background-networking",
            "--disable-extensions",
            "--disable-dev-shm-usage",
        ]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("chromium cannot be started: {error}"))?;
        let (Some(to), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("chromium has no pipes".to_owned());
        };
        let (heard, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(out).split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("messages are JSON");
                if heard.send(message).is_err() {
                    return;
                }
            }
        });
        let mut pipe =
            Self { child, to, from, events: VecDeque::new(), calls: 0, session: None, profile };
        let tab = pipe.call("Target.createTarget", json!({ "url": "about:blank" }));
        let tab = json!({ "targetId": tab["targetId"], "flatten": true });
        let session = pipe.call("Target.attachToTarget", tab);
        pipe.session = session["sessionId"].as_str().map(str::to_owned);
        Ok(pipe)
    }

    /// Calls `method` and waits for its answer.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("chromium listens");
        loop {
            let mut heard = self.hear();
            if heard["id"] == id {
                assert!(heard.get("error").is_none(), "{method}: {heard}");
                return heard["result"].take();
            }
            self.events.push_back(heard);
        }
    }

    /// Waits for an event.
    pub fn until(&mut self, method: &str) {
        if self.events.iter().any(|event| event["method"] == method) {
            return;
        }
        loop {
            let heard = self.hear();
            let here = heard["method"] == method;
            self.events.push_back(heard);
            if here {
                return;
            }
        }
    }

    /// Events since the last time.
    pub fn events(&mut self) -> Vec<Value> {
        self.events.drain(..).collect()
    }

    fn hear(&mut self) -> Value {
        // CLOCK: ends a test of a browser that hangs; nothing is judged by it.
        let heard = self.from.recv_timeout(PATIENCE);
        heard.expect("chromium answers")
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
