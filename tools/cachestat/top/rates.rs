//! Rates over time, the slots by state, and where the time of the loads goes.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, SparklineBar};
use spoc_cache::State;
use spoc_cache::stats::layout::Counter;
use spoc_tools::units;

use super::board::{Point, Watched};
use super::draw::{ALARM, DIM};
use crate::rates::Interval;

/// Rows of a sparkline.
const SPARK_ROWS: u16 = 3;
/// Width of the names before the sparklines and bars.
const NAME_WIDTH: u16 = 22;

/// Draws the pane. What does not fit is cut off below, the most telling stands above.
pub fn draw(frame: &mut Frame<'_>, area: Rect, watched: &Watched) {
    let interval = &watched.interval;
    let diagnostics = interval.diagnostics();
    let parts = [
        Constraint::Length(u16::try_from(diagnostics.len()).unwrap_or(u16::MAX)),
        Constraint::Length(SPARK_ROWS),
        Constraint::Length(SPARK_ROWS),
        Constraint::Length(SPARK_ROWS),
        Constraint::Length(2),
        Constraint::Min(0),
    ];
    let [wrong, bytes, stall, requests, states, stages] = Layout::vertical(parts).areas(area);
    let alarms: Vec<Line<'_>> = diagnostics.iter().map(|line| Line::styled(line.clone(), ALARM)).collect();
    frame.render_widget(Paragraph::new(alarms), wrong);
    spark(frame, bytes, &format!("{:.1} MB/s", interval.mb_per_s()), &watched.past, |point| point.mb_per_s);
    let waiting = format!("{:.0} ms/s stalled", interval.stall_ms_per_s());
    spark(frame, stall, &waiting, &watched.past, |point| point.stall_ms);
    let asked = interval.rate(interval.count(Counter::Requested));
    spark(frame, requests, &format!("{asked:.0} groups/s"), &watched.past, |point| point.requests);
    frame.render_widget(Paragraph::new(by_state(interval)), states);
    frame.render_widget(Paragraph::new(by_stage(interval)), stages);
}

fn spark(frame: &mut Frame<'_>, area: Rect, name: &str, past: &VecDeque<Point>, of: fn(&Point) -> u64) {
    let [left, right] = Layout::horizontal([Constraint::Length(NAME_WIDTH), Constraint::Min(0)]).areas(area);
    let shown: Vec<u64> = past.iter().rev().take(right.width.into()).map(of).collect();
    let most = shown.iter().copied().max().unwrap_or(0);
    let names = vec![Line::raw(format!(" {name}")), Line::styled(format!(" at most {most}"), DIM)];
    frame.render_widget(Paragraph::new(names), left);
    // The newest stands at the right edge; a shorter past leaves room on its left.
    let missing = usize::from(right.width).saturating_sub(shown.len());
    let bars: Vec<SparklineBar> =
        std::iter::repeat_n(0, missing).chain(shown.into_iter().rev()).map(SparklineBar::from).collect();
    // A past of nothing but zeros has no scale.
    frame.render_widget(Sparkline::default().data(bars).max(most.max(1)), right);
}

/// Slots in each state: in words, and as a strip.
fn by_state(interval: &Interval) -> Vec<Line<'static>> {
    let snapshot = interval.now().snapshot();
    let states =
        [State::Leased, State::Resident, State::Draining, State::Loading, State::Failed, State::Free];
    let counts: Vec<String> = states
        .iter()
        .map(|&state| format!("{} {}", snapshot.states[state as usize], state.as_str()))
        .collect();
    let flight = format!(
        " loading {} groups, {}; {} sets wait for room; {} leases",
        snapshot.in_flight,
        units::bytes(snapshot.in_flight_bytes),
        snapshot.queued,
        snapshot.leases
    );
    vec![Line::raw(format!(" slots: {}", counts.join(", "))), Line::raw(flight)]
}

/// The stages of a load and how much of each second each waited or worked.
fn by_stage(interval: &Interval) -> Vec<Line<'static>> {
    const WIDTH: f64 = 40.0;
    let stages = [
        ("waits for the disk", Counter::WaitReadsNs),
        ("waits for copies", Counter::WaitCopiesNs),
        ("waits for a chunk", Counter::WaitChunksNs),
        ("enqueues copies", Counter::EnqueueNs),
    ];
    let mut lines = vec![Line::styled(" of each second of loading:", DIM)];
    for (name, counter) in stages {
        let ms = interval.rate(interval.count(counter)) / 1e6;
        // 0 to 40, whatever the page says.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let filled = (ms / 1000.0 * WIDTH).round().clamp(0.0, WIDTH) as usize;
        let bar = Span::raw("#".repeat(filled));
        lines.push(Line::from(vec![Span::raw(format!(" {name:<20} {ms:6.0} ms  ")), bar]));
    }
    lines
}
