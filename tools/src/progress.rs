//! A bar for people who watch; nothing is drawn when standard error is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TEMPLATE: &str =
    "{msg:10} [{bar:32}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";

/// A bar over `bytes`, hidden with `hidden`.
pub fn bar(what: &'static str, bytes: u64, hidden: bool) -> ProgressBar {
    if hidden || !crate::out::shows_progress() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(TEMPLATE).map(|style| style.progress_chars("=> "));
    let bar = ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
