// Package pulled remembers which images the agent has pulled with which credentials, so that no pod gets an image of
// somebody else's only because it is on the machine already. Policies, rules and the format of the records are a
// kubelet's.
//
// Before a pull an intent is written, and after it, before the intent goes, a record of the image. What was pulled by
// an agent that was killed in between is found by its intent, and is then an image that nobody has shown credentials
// for. Unlike the agent's other records these outlive a loss of power, as the images do.
package pulled

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// Secret is a pull secret of a pod, with the hash of what it has for a registry.
type Secret = kubeletv1beta1.ImagePullSecret

// maxSecrets is how many secrets are remembered for one name of an image, the latest. Others are verified again.
const maxSecrets = 100

// staleIntent is the age at which an intent that has led to no image is forgotten: another runtime may have gone on
// with the pull for a while.
const staleIntent = time.Hour

// Config is what [Records] work with. Dir and Find are required.
type Config struct {
	Dir    string // is made when there is something to be kept in it
	Policy Policy
	// Find returns the ID that an image has on the machine, "" when it is not there, and all names that it has. The
	// reference may be an ID.
	Find func(context.Context, Image) (id string, names []string, err error)
	Log  *slog.Logger
}

// Image is an image as a pod names it.
type Image struct {
	Ref     string // its name, with or without registry, tag and digest
	Handler string // the runtime handler that it is for: runtimes may keep images of each handler apart
}

// String is the reference, and the handler if there is one.
func (i Image) String() string {
	if i.Handler == "" {
		return i.Ref
	}
	return i.Ref + " for " + i.Handler
}

// full is the image with its registry and its tag or digest, and name is its name alone.
func (i Image) full() (full Image, name string, err error) {
	named, err := reference.ParseNormalizedNamed(i.Ref)
	if err != nil {
		return i, "", fmt.Errorf("image %q: %w", i.Ref, err)
	}
	return Image{reference.TagNameOnly(named).String(), i.Handler}, named.Name(), nil
}

// Records are what is known of the images that were pulled. They are safe for concurrent use. Those that are nil
// remember nothing, and every pod may use every image.
type Records struct {
	cfg Config

	mu      sync.Mutex
	intents map[Image]*pull // by the full image
}

// pull is one, or several at the same time, of one image.
type pull struct {
	intent
	running int
	since   time.Time
	cut     bool // one of them may have gone on after nobody waited for it
}

// Open reads what an earlier agent has left.
func Open(c Config) (*Records, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Records{cfg: c}
	var err error
	if r.intents, err = r.readIntents(); err != nil {
		return nil, fmt.Errorf("read records of pulled images: %w", err)
	}
	return r, nil
}

// Begin is called before a pull of an image, and returns what must be called after it.
func (r *Records) Begin(ctx context.Context, image Image) (*Pull, error) {
	if r == nil {
		return nil, nil
	}
	image, _, err := image.full()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.settle(ctx, &image); err != nil {
		return nil, err
	}
	p := r.intents[image]
	if p == nil {
		before, _, err := r.cfg.Find(ctx, image)
		if err != nil {
			return nil, err
		}
		p = &pull{intent: newIntent(image, before), since: time.Now()}
		if err := r.writeIntent(p.intent); err != nil {
			return nil, fmt.Errorf("record intent to pull image %q: %w", image.Ref, err)
		}
		r.intents[image] = p
	}
	p.running++
	return &Pull{r, image}, nil
}

// Pull is a pull that has begun. One of its methods must be called once.
type Pull struct {
	records *Records
	image   Image
}

// Done tells that the pull has brought the image with that ID. by is the secret that the registry was shown; nil:
// nothing, or what every pod of the node may show.
func (p *Pull) Done(ctx context.Context, id string, by *Secret) {
	if p == nil {
		return
	}
	r := p.records
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.add(ctx, p.image, id, by)
	if err != nil {
		// The intent stays, by which it is known that the image was pulled.
		r.cfg.Log.Error("who has pulled an image is not remembered", "image", p.image, "error", err)
	}
	r.end(p.image, err != nil)
}

// Failed tells that the pull has brought nothing. cut: nobody waited for its end, so that this is not certain.
func (p *Pull) Failed(cut bool) {
	if p == nil {
		return
	}
	p.records.mu.Lock()
	defer p.records.mu.Unlock()
	p.records.end(p.image, cut)
}

func (r *Records) end(image Image, cut bool) {
	p := r.intents[image]
	p.cut = p.cut || cut
	if p.running--; p.running > 0 || p.cut {
		return
	}
	r.forget(image)
}

// forget removes an intent.
func (r *Records) forget(image Image) {
	if err := r.removeIntent(image); err != nil {
		// With it the image is taken for one that was pulled, of which nothing worse comes than another look at
		// credentials.
		r.cfg.Log.Warn("intent of a pull stays", "image", image, "error", err)
		return
	}
	delete(r.intents, image)
}

// May says whether a pod may use an image that is there, with that ID. secrets returns what the pod has for the image's
// registry; it is called only when that matters.
func (r *Records) May(ctx context.Context, image Image, id string, secrets func() []Secret) (bool, error) {
	if r == nil {
		return true, nil
	}
	image, name, err := image.full()
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.settle(ctx, nil); err != nil {
		return false, err
	}
	known, found, err := r.read(id)
	if err != nil {
		r.cfg.Log.Warn("who has pulled an image cannot be told, and credentials are looked at again", "image", image,
			"error", err)
	}
	p := r.intents[image]
	byAgent := err != nil || found && !known.preloaded(name) || p != nil && p.Before != id
	if !r.cfg.Policy.verifies(name, byAgent) {
		return true, nil
	}
	if !found {
		return false, nil
	}
	creds, ok := known.CredentialMapping[name]
	if !ok || creds.NodePodsAccessible {
		return ok, nil
	}
	if len(creds.KubernetesSecrets) == 0 {
		return false, nil
	}
	return r.shown(known, name, secrets()), nil
}

// shown says whether one of the secrets is one that the image was pulled with: the same credentials, or the same
// Secret, whose owner has put others into it.
func (r *Records) shown(known *pulledRecord, name string, secrets []Secret) bool {
	for _, s := range secrets {
		for _, k := range known.CredentialMapping[name].KubernetesSecrets {
			if k == s {
				return true
			}
			if k.CredentialHash != s.CredentialHash && !sameSecret(k, s) {
				continue
			}
			// The next pod that comes with it is known, too, whatever becomes of this one.
			if merge(known, name, &s) {
				if err := r.write(known); err != nil {
					r.cfg.Log.Warn("credentials of a pulled image are not remembered", "image", name, "error", err)
				}
			}
			return true
		}
	}
	return false
}

// sameSecret says whether two are the same object. Those of manifest files have no UID: whoever writes one with the
// name of another is not known to be its owner.
func sameSecret(a, b Secret) bool {
	return a.UID != "" && a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

// add records that an image was pulled.
func (r *Records) add(ctx context.Context, image Image, id string, by *Secret) error {
	_, name, err := image.full()
	if err != nil {
		return err
	}
	known, found, err := r.read(id)
	if err != nil {
		r.cfg.Log.Warn("record of a pulled image is written again", "image", image, "error", err)
	}
	if !found {
		known = newRecord(id)
		if err == nil {
			known.Preloaded = r.others(ctx, image, id)
		}
	}
	if changed := merge(known, name, by); !changed {
		return nil
	}
	return r.write(known)
}

// others are the names by which an image was on the machine before it was pulled for the first time. By them it goes on
// to be everybody's.
func (r *Records) others(ctx context.Context, image Image, id string) []string {
	_, names, err := r.cfg.Find(ctx, Image{id, image.Handler})
	if err != nil {
		r.cfg.Log.Warn("other names of a pulled image are not known", "image", image, "error", err)
		return nil // who comes with one of them has to show credentials
	}
	mine := map[string]bool{}
	for i := range r.intents {
		if _, name, err := i.full(); err == nil {
			mine[name] = true
		}
	}
	var out []string
	for _, n := range names {
		if _, name, err := (Image{Ref: n}).full(); err == nil && !mine[name] && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// merge adds to a record who may use an image by that name. It returns whether that is anything new.
func merge(known *pulledRecord, name string, by *Secret) bool {
	creds := known.CredentialMapping[name]
	switch {
	case creds.NodePodsAccessible:
		return false
	case by == nil:
		creds = kubeletv1beta1.ImagePullCredentials{NodePodsAccessible: true}
	case slices.Contains(creds.KubernetesSecrets, *by):
		return false
	default:
		rest := slices.DeleteFunc(slices.Clone(creds.KubernetesSecrets), func(s Secret) bool { return sameSecret(s, *by) })
		rest = append(rest, *by)
		creds.KubernetesSecrets = rest[max(0, len(rest)-maxSecrets):]
	}
	if known.CredentialMapping == nil {
		known.CredentialMapping = map[string]kubeletv1beta1.ImagePullCredentials{}
	}
	known.CredentialMapping[name] = creds
	known.LastUpdatedTime = metav1.Now()
	return true
}

// settle looks what has become of pulls whose end nobody saw: an image that they brought is one that nobody has shown
// credentials for. With a name given, that pull is over now, because another begins.
func (r *Records) settle(ctx context.Context, again *Image) error {
	for image, p := range r.intents {
		if p.running > 0 {
			continue
		}
		id, _, err := r.cfg.Find(ctx, image)
		if err != nil {
			return fmt.Errorf("look for image %q, whose pull was cut off: %w", image, err)
		}
		if id == "" || id == p.Before {
			if again != nil && *again == image || time.Since(p.since) > staleIntent {
				r.forget(image)
			}
			continue
		}
		if _, found, err := r.read(id); err == nil && !found {
			known := newRecord(id)
			known.Preloaded = r.others(ctx, image, id)
			if err := r.write(known); err != nil {
				return fmt.Errorf("record image %q, whose pull was cut off: %w", image, err)
			}
		}
		r.forget(image)
	}
	return nil
}

// Prune forgets images that are not on the machine any more: ids are those that were there at a moment.
func (r *Records) Prune(ctx context.Context, ids map[string]bool, at time.Time) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := errors.Join(r.settle(ctx, nil), r.prune(ids, at)); err != nil {
		return fmt.Errorf("forget pulled images: %w", err)
	}
	return nil
}
