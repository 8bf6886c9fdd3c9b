// What is kept on the page: the server's half hour, and what has come since.

export class History {
  constructor() {
    this.now = null;
    this.reset({ bins: [], changes: [], marks: [], series: [], bin_s: 5, span_s: 1800, began: 0 });
  }

  reset(all) {
    Object.assign(this, { bins: all.bins, marks: all.marks, binSeconds: all.bin_s, spanSeconds: all.span_s, began: all.began });
    this.place = Object.fromEntries(all.series.map((name, index) => [name, index]));
    /** Of each device its owners in order: {from, kind, name}. */
    this.owners = new Map();
    all.changes.forEach(change => this.#own(change));
    if (all.now) this.now = all.now;
  }

  add(frame) {
    frame.changes.forEach(change => this.#own(change));
    this.marks.push(...frame.marks);
    if (frame.bin) this.bins.push(frame.bin);
    this.now = frame.now;
    const oldest = this.now.at - this.spanSeconds;
    while (this.bins.length && this.bins[0].at < oldest) this.bins.shift();
    while (this.marks.length && this.marks[0].at < oldest) this.marks.shift();
    for (const owners of this.owners.values()) while (owners.length > 1 && owners[1].from < oldest) owners.shift();
    return Boolean(frame.bin);
  }

  /** Points of a model's series: {x: [Date], y: [value]}. */
  series(model, name) {
    const place = this.place[name], bins = this.bins.filter(bin => bin.models[model]);
    return { x: bins.map(bin => new Date(bin.at * 1000)), y: bins.map(bin => bin.models[model][place]) };
  }

  #own([from, device, kind, name]) {
    if (!this.owners.has(device)) this.owners.set(device, []);
    this.owners.get(device).push({ from, kind, name });
  }
}
