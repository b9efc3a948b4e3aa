package source

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/agent/source/manifest"
	"github.com/berth-node/berth/internal/atomicfile"
)

// saved is the last good version of one manifest's pods, as it is kept for the time after a restart.
type saved struct {
	File string     `json:"file"`
	Pods []savedPod `json:"pods"`

	Objects []savedObject `json:"objects,omitempty"` // but for Secrets, which are never written to a disk
}

type savedObject struct {
	Since  time.Time       `json:"since"`
	Object json.RawMessage `json:"object"`
}

type savedPod struct {
	Since time.Time       `json:"since"`
	Pod   json.RawMessage `json:"pod"`
	// Of the pod that goes on, when the manifest would make another one now.
	UID types.UID `json:"uid,omitempty"`
}

func (s *Source) statePath(name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(s.cfg.StateDir, hex.EncodeToString(sum[:sumSize])+".json")
}

// Kept says whether a file in the directory of last good manifests is one of theirs, whole or half written, by its
// name. What else is there somebody else has put there.
func Kept(name string) bool {
	sum, ok := strings.CutSuffix(strings.TrimSuffix(name, atomicfile.Part), ".json")
	return ok && len(sum) == 2*sumSize && strings.Trim(sum, "0123456789abcdef") == ""
}

// sumSize is how much of a digest the name of a kept manifest has, in bytes.
const sumSize = 16

// restore takes up the claims of the last run. They are told of only after the files were read, so that what has
// changed meanwhile changes at once.
func (s *Source) restore() {
	if s.cfg.StateDir == "" {
		return
	}
	entries, err := os.ReadDir(s.cfg.StateDir)
	if err != nil && !os.IsNotExist(err) {
		s.log.Warn("last good manifests cannot be read", "error", err)
	}
	type restored struct {
		name  string
		claim manifest.Item
	}
	var all []restored
	for _, e := range entries {
		path := filepath.Join(s.cfg.StateDir, e.Name())
		if !Kept(e.Name()) {
			s.log.Warn("file among the kept manifests is not one, and is left alone", "path", path)
			continue
		}
		var v saved
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &v)
		}
		if err == nil && (s.statePath(v.File) != path || strings.Contains(v.File, "/") && s.origin(v.File) != desired.URL) {
			err = fmt.Errorf("belongs to %q", v.File)
		}
		if err != nil {
			// Half written when the power went, or left by a crash before its rename.
			s.log.Warn("kept manifest is of no use and goes", "path", path, "error", err)
			_ = os.Remove(path)
			continue
		}
		f, from := &file{}, manifest.Place{Origin: s.origin(v.File)}
		for _, p := range v.Pods {
			// What this version does not accept any more is judged when its file is read.
			if c, ok := s.reader.Again(p.Pod, from, p.Since); ok && c.Pod != nil {
				if p.UID != "" {
					c.Pod.UID = p.UID
				}
				f.claims = append(f.claims, c)
				all = append(all, restored{v.File, c})
			}
		}
		for _, o := range v.Objects {
			if c, ok := s.reader.Again(o.Object, from, o.Since); ok && c.Object != nil {
				f.claims = append(f.claims, c)
				all = append(all, restored{v.File, c})
			}
		}
		s.files[v.File] = f
		if from.Origin == desired.File {
			s.dir.Know(v.File)
		}
	}
	slices.SortStableFunc(all, func(a, b restored) int { return a.claim.Since.Compare(b.claim.Since) })
	for _, r := range all {
		s.claims[r.claim.Ref] = append(s.claims[r.claim.Ref], r.name)
	}
}

// save keeps what changed. It runs when there is nothing to send: it is for a restart only, and no pod waits for it.
// What cannot be kept is tried again.
func (s *Source) save() {
	if len(s.unsaved) == 0 {
		return
	}
	if s.cfg.StateDir == "" {
		clear(s.unsaved)
		return
	}
	for name := range s.unsaved {
		err := s.saveFile(name)
		if err == nil {
			delete(s.unsaved, name)
			continue
		}
		if s.unsaved[name] {
			s.log.Warn("last good manifest is not kept for a restart", "file", s.path(name), "error", err)
		}
		s.unsaved[name] = false
	}
}

func (s *Source) saveFile(name string) error {
	path := s.statePath(name)
	f := s.files[name]
	if f == nil || len(f.claims) == 0 {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	}
	v := saved{File: name}
	for _, c := range f.claims {
		switch {
		case c.Pod != nil:
			v.Pods = append(v.Pods, savedPod{Since: c.Since, Pod: c.Raw, UID: c.Pod.UID})
		case c.Ref.Kind != object.Secret:
			v.Objects = append(v.Objects, savedObject{Since: c.Since, Object: c.Raw})
		}
	}
	if err := os.MkdirAll(s.cfg.StateDir, 0o700); err != nil {
		return err
	}
	return record.Write(path, v)
}
