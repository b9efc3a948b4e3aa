package pulled

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/disk"
)

// The directories of the records, which have kubelet's names.
const (
	intentsDir = "pulling"
	recordsDir = "pulled"
)

// maxFile bounds what is read of a record, in bytes: an image has a name for each registry and tag.
const maxFile = 4 << 20

// intent is kubelet's record of a pull that has begun, with the ID that the image had before: one that still has it was
// not brought by the pull.
type intent struct {
	kubeletv1beta1.ImagePullIntent
	Before  string `json:"berthBefore,omitempty"`
	Handler string `json:"berthHandler,omitempty"`
}

func (i intent) of() Image { return Image{i.Image, i.Handler} }

// pulledRecord is kubelet's record of an image that was pulled, with the names that it had before, none of which has
// anything in the mapping as long as nobody pulls the image by it.
type pulledRecord struct {
	kubeletv1beta1.ImagePulledRecord
	Preloaded []string `json:"berthPreloaded,omitempty"`
}

func (p *pulledRecord) preloaded(name string) bool {
	_, since := p.CredentialMapping[name]
	return !since && slices.Contains(p.Preloaded, name)
}

func kind(k string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: kubeletv1beta1.SchemeGroupVersion.String(), Kind: k}
}

func newIntent(image Image, before string) intent {
	return intent{kubeletv1beta1.ImagePullIntent{TypeMeta: kind("ImagePullIntent"), Image: image.Ref}, before, image.Handler}
}

func newRecord(id string) *pulledRecord {
	return &pulledRecord{ImagePulledRecord: kubeletv1beta1.ImagePulledRecord{TypeMeta: kind("ImagePulledRecord"), ImageRef: id, LastUpdatedTime: metav1.Now()}}
}

// fileName is the name of the file about an image or an ID, which may have characters that file names must not.
func fileName(of string) string {
	sum := sha256.Sum256([]byte(of))
	return "sha256-" + hex.EncodeToString(sum[:])
}

func (r *Records) path(dir, of string) string {
	return filepath.Join(r.cfg.Dir, dir, fileName(of))
}

// readIntents reads the intents of an earlier agent.
func (r *Records) readIntents() (map[Image]*pull, error) {
	for _, dir := range []string{intentsDir, recordsDir} {
		if err := removeHalves(filepath.Join(r.cfg.Dir, dir)); err != nil {
			// It takes some space, and is written over.
			r.cfg.Log.Warn("half-written records of pulled images are not removed", "error", err)
		}
	}
	dir := filepath.Join(r.cfg.Dir, intentsDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out := map[Image]*pull{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		data, err := atomicfile.Read(path, maxFile)
		if err != nil && !disk.Unwritable(err) && !errors.Is(err, atomicfile.ErrNoFile) {
			return nil, err
		}
		var i intent
		if err == nil {
			i, err = decodeIntent(data)
		}
		if err == nil && fileName(i.of().String()) != e.Name() {
			err = fmt.Errorf("it is about image %q, which would have another name", i.Image)
		}
		if err != nil {
			r.cfg.Log.Warn("file is no intent of a pull", "file", path, "error", err)
			continue
		}
		p := &pull{intent: i}
		if st, err := e.Info(); err == nil {
			p.since = st.ModTime()
		}
		out[i.of()] = p
	}
	return out, nil
}

// removeHalves removes files that were being written when their writer was killed.
func removeHalves(dir string) error {
	halves, err := filepath.Glob(filepath.Join(dir, "*.new"))
	for _, h := range halves {
		err = errors.Join(err, os.Remove(h))
	}
	return err
}

func decodeIntent(data []byte) (intent, error) {
	var i intent
	if err := json.Unmarshal(data, &i); err != nil {
		return i, err
	}
	if i.Kind != "ImagePullIntent" || i.Image == "" {
		return i, errors.New("it is no ImagePullIntent")
	}
	return i, nil
}

func decodeRecord(data []byte) (*pulledRecord, error) {
	var p pulledRecord
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, err
	}
	if p.Kind != "ImagePulledRecord" || p.ImageRef == "" {
		return nil, errors.New("it is no ImagePulledRecord")
	}
	return &p, nil
}

func (r *Records) writeIntent(i intent) error {
	return keep(r.path(intentsDir, i.of().String()), i)
}

// keep makes the directory where there is none: at the start the disk may be one that cannot be written.
func keep(path string, v any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return record.Keep(path, v)
}

func (r *Records) removeIntent(image Image) error {
	err := os.Remove(r.path(intentsDir, image.String()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// read returns what is recorded of an image, and whether anything is. A file that is of no use is an error.
func (r *Records) read(id string) (*pulledRecord, bool, error) {
	path := r.path(recordsDir, id)
	data, err := atomicfile.Read(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	p, err := decodeRecord(data)
	if err == nil && p.ImageRef != id {
		err = fmt.Errorf("it is about image %q", p.ImageRef)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", path, err)
	}
	return p, true, nil
}

func (r *Records) write(p *pulledRecord) error {
	return keep(r.path(recordsDir, p.ImageRef), p)
}

// prune removes the records, written before a moment, of images that are not among those with the IDs.
func (r *Records) prune(ids map[string]bool, at time.Time) error {
	keep := map[string]bool{}
	for id := range ids {
		keep[fileName(id)] = true
	}
	dir := filepath.Join(r.cfg.Dir, recordsDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		st, err := e.Info()
		if err != nil || keep[e.Name()] || !strings.HasPrefix(e.Name(), "sha256-") || !st.ModTime().Before(at) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
