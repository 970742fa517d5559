// Incremental parser of the text/event-stream format.

const LINE_END = /\r\n|\n|\r/;

/** A reader that is fed text and calls `onEvent({ id, kind, data })` for each complete event. */
export function createEventReader(onEvent) {
  let rest = "";
  let event = { id: "", kind: "message", data: [] };

  function take(line) {
    if (line === "") {
      if (event.data.length > 0) onEvent({ id: event.id, kind: event.kind, data: event.data.join("\n") });
      event = { id: event.id, kind: "message", data: [] };
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "id") event.id = value;
    else if (field === "event") event.kind = value;
    else if (field === "data") event.data.push(value);
    // A line that begins with a colon is a keep-alive comment.
  }

  return (text) => {
    const whole = rest + text;
    // A carriage return at the end may be the first half of a line's end.
    const held = whole.endsWith("\r") ? "\r" : "";
    const lines = (held ? whole.slice(0, -1) : whole).split(LINE_END);
    rest = (lines.pop() ?? "") + held;
    lines.forEach(take);
  };
}
