package sandbox

import (
	"cmp"
	"maps"
	"time"

	"github.com/berth-node/berth/cri/answer"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/quarantine"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// uidLabel is how kubelet, and the agent as well, have sandboxes say whose they are, and find those of a pod.
const uidLabel = "io.kubernetes.pod.uid"

// Table has all sandboxes and their records.
type Table struct {
	ByID *ledger.Index[*Sandbox]

	host       *host.Host
	records    ledger.Ledger[Record]
	names      ledger.Names
	quarantine *quarantine.Quarantine
}

// NewTable returns a table of records, none of which is loaded yet.
func NewTable(m *host.Host, records ledger.Ledger[Record], q *quarantine.Quarantine) *Table {
	byUID := func(sb *Sandbox) string { return sb.Config.GetLabels()[uidLabel] }
	return &Table{ByID: ledger.NewMarked("sandbox", byUID), host: m, records: records, quarantine: q}
}

// IDs are those of all records, also of what cannot be read.
func (t *Table) IDs(yield func(id string)) { t.records.IDs(yield) }

// Load reads one record, from the table, or, where that has lost some, the sandbox's own. adopted says that it is the
// latter.
func (t *Table) Load(id string, lost bool) (adopted bool, err error) {
	own := t.host.Paths.Sandbox(id).Record()
	f, err := ledger.Find(&t.records, id, own, lost, func(r Record) (*runtimeapi.PodSandboxConfig, error) {
		cfg := &runtimeapi.PodSandboxConfig{}
		if err := ledger.Decode(r.Config, cfg); err != nil {
			return nil, err
		}
		return cfg, r.check(id, cfg)
	})
	if err != nil {
		return false, err
	}
	if err := t.names.Reserve(f.Rec.Name, id); err != nil {
		return false, err
	}
	sb := New(f.Rec, f.Decoded)
	t.ByID.Put(id, sb)
	if f.Adopted {
		t.host.Log.Warn("record of a sandbox was lost, and it is adopted by its own", append(sb.LogAttrs(), "state", f.Rec.State)...)
	}
	if err := t.records.Supply(id, f.Rec); err != nil {
		t.host.Log.Warn("sandbox would be lost with the records", append(sb.LogAttrs(), "error", err)...)
	}
	return f.Adopted, nil
}

// Update changes the sandbox's record, on disk first.
func (t *Table) Update(sb *Sandbox, change func(*Record)) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	rec := sb.rec
	change(&rec)
	if err := t.records.Put(sb.ID, rec); err != nil {
		return err
	}
	sb.rec = rec
	return nil
}

// Note is update for what has happened already, whether it can be written down or not: a full disk must not keep pods
// from ending.
func (t *Table) Note(sb *Sandbox, change func(*Record)) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	change(&sb.rec)
	if err := t.records.Note(sb.ID, sb.rec); err != nil {
		t.host.Log.Error("sandbox record is not written", "sandbox", sb.ID, "error", err)
	}
}

// Drop ends the sandbox's record.
func (t *Table) Drop(sb *Sandbox) error {
	if err := t.records.Drop(sb.ID, t.host.Paths.Sandbox(sb.ID).Record()); err != nil {
		return err
	}
	sb.mu.Lock()
	sb.gone = true
	sb.mu.Unlock()
	t.ByID.Delete(sb.ID)
	t.names.Release(sb.ID)
	return nil
}

// Status is what clients are told of one sandbox.
func (t *Table) Status(r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	sb, err := t.ByID.Get(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.PodSandboxStatusResponse{
		Status: sandboxStatus(sb), ContainersStatuses: containerStatuses(sb), Timestamp: time.Now().UnixNano(),
	}
	if err := cmp.Or(sb.Troubled(), t.quarantine.Obscured(sb.ID)); err != nil {
		out.Info = map[string]string{"problem": err.Error()}
	}
	if r.GetVerbose() {
		rec := sb.Record()
		info := map[string]any{"pid": rec.Pid, "cgroup": rec.Cgroup, "networkNamespace": rec.NetNS, "state": rec.State, "config": sb.Config}
		if overhead, resources, ok := updatedResources(rec); ok {
			info["overhead"], info["resources"] = &runtimeapi.ContainerResources{Linux: overhead}, &runtimeapi.ContainerResources{Linux: resources}
		}
		text, err := answer.Verbose(info)
		if err != nil {
			return nil, err
		}
		maps.Copy(text, out.Info)
		out.Info = text
	}
	return out, nil
}

// List is what clients are told of those that a filter names, the newest first.
func (t *Table) List(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	id := ""
	if f.GetId() != "" {
		sb, err := t.ByID.Get(f.GetId())
		if err != nil {
			return nil
		}
		id = sb.ID
	}
	var out []*runtimeapi.PodSandbox
	named := func(sb *Sandbox) bool {
		return (id == "" || sb.ID == id) && answer.HasLabels(sb.Config.GetLabels(), f.GetLabelSelector())
	}
	for _, sb := range t.named(f.GetLabelSelector()[uidLabel], named) {
		rec := sb.Record()
		switch {
		case rec.State == Creating:
		case f.GetState() != nil && f.GetState().GetState() != rec.State.CRI():
		default:
			out = append(out, &runtimeapi.PodSandbox{
				Id: sb.ID, Metadata: sb.Config.GetMetadata(), State: rec.State.CRI(), CreatedAt: rec.CreatedAt,
				Labels: sb.Config.GetLabels(), Annotations: sb.Config.GetAnnotations(), RuntimeHandler: rec.Handler,
			})
		}
	}
	return out
}

// named are those with the UID of a pod, "" for all, that keep says.
func (t *Table) named(uid string, keep func(*Sandbox) bool) []*Sandbox {
	if uid == "" {
		return t.ByID.Match(keep, Newest)
	}
	return t.ByID.MatchMarked(uid, keep, Newest)
}

// Newest is the order of lists.
func Newest(a, b *Sandbox) int {
	switch x, y := a.Record().CreatedAt, b.Record().CreatedAt; {
	case x > y:
		return -1
	case x < y:
		return 1
	}
	return 0
}
