package images

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Validate says what is wrong with a policy, by the names of the flags.
func (p Policy) Validate() error {
	var errs []error
	for flag, n := range map[string]int{"high": p.High, "low": p.Low} {
		if n < 0 || n > 100 {
			errs = append(errs, fmt.Errorf("--image-gc-%s-threshold %d: must be from 0 to 100 percent", flag, n))
		}
	}
	if p.Low >= p.High {
		errs = append(errs, fmt.Errorf("--image-gc-low-threshold %d: must be less than --image-gc-high-threshold %d", p.Low, p.High))
	}
	if p.MinAge < 0 {
		errs = append(errs, fmt.Errorf("--minimum-image-ttl-duration %s: must not be negative", p.MinAge))
	}
	if p.MaxAge < 0 || p.MaxAge > 0 && p.MaxAge <= p.MinAge {
		errs = append(errs, fmt.Errorf("--maximum-image-gc-age %s: must be 0, or more than --minimum-image-ttl-duration %s", p.MaxAge, p.MinAge))
	}
	return errors.Join(errs...)
}

// need is how many bytes are to be freed, and how many percent are used.
func (p Policy) need(capacity, available int64) (bytes int64, used int) {
	used = 100 - int(available*100/capacity)
	if used < p.High {
		return 0, used
	}
	return capacity*int64(100-p.Low)/100 - available, used
}

// Inodes are short when less than that share of them is free, as for kubelet's eviction, and enough when twice as many
// are.
const inodesShort = 20

// needInodes is how many inodes are to be freed. File systems that make them as they need them have none in all.
func needInodes(all, free int64) int64 {
	if all <= 0 || free >= all/inodesShort {
		return 0
	}
	return 2*all/inodesShort - free
}

// keyOf tells images apart: runtimes may have one of the same ID for each of their handlers.
func keyOf(img *runtimeapi.Image) string {
	return img.GetId() + " " + img.GetSpec().GetRuntimeHandler()
}

// used is by what containers and pods have their images.
type used struct {
	names map[string]bool // and IDs
	ids   []string        // beginnings of IDs, without their algorithm
}

// usedBy are the names and IDs by which containers and pods have their images.
func usedBy(containers []*runtimeapi.Container, wanted []string) used {
	out := used{names: map[string]bool{}}
	for _, c := range containers {
		for _, name := range []string{c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage()} {
			if name != "" {
				out.names[name] = true
			}
		}
	}
	for _, name := range wanted {
		// A pod may name an image by its ID, or the beginning of that, which looks like a name as well.
		if hex := strings.TrimPrefix(name, idAlgorithm); hex != "" && strings.Trim(hex, "0123456789abcdef") == "" {
			out.ids = append(out.ids, hex)
		}
		if ref, err := reference.ParseDockerRef(name); err == nil {
			name = ref.String() // as runtimes have it, with the registry and the tag
		}
		out.names[name] = true
	}
	return out
}

// idAlgorithm begins the IDs of images, of those runtimes that write it.
const idAlgorithm = "sha256:"

// has says whether an image is among them.
func (u used) has(img *runtimeapi.Image) bool {
	is := func(n string) bool { return u.names[n] }
	hex := strings.TrimPrefix(img.GetId(), idAlgorithm)
	return is(img.GetId()) || slices.ContainsFunc(img.GetRepoTags(), is) || slices.ContainsFunc(img.GetRepoDigests(), is) ||
		slices.ContainsFunc(u.ids, func(begin string) bool { return strings.HasPrefix(hex, begin) })
}

// see takes note of the images there are, and which of them are used now.
func (c *Collector) see(images []*runtimeapi.Image, by used, now time.Time) {
	fresh := map[string]*record{}
	var came map[string]time.Time
	if now.IsZero() && c.cfg.Came != nil {
		came = c.cfg.Came()
	}
	for _, img := range images {
		r := c.images[keyOf(img)]
		if r == nil {
			r = &record{first: now}
			if at := came[img.GetId()]; !at.After(c.began) { // else a clock was wrong then, or is now
				r.first = cmp.Or(at, now)
			}
		}
		r.image, r.inUse = img, by.has(img)
		if r.inUse {
			r.used = now
		}
		fresh[keyOf(img)] = r
	}
	c.images = fresh
}

// unused are the images that may go, the least recently used first, and of those never used the one that has been here
// longest.
func (c *Collector) unused() []*record {
	var out []*record
	for _, r := range c.images {
		if !r.inUse && !r.image.GetPinned() {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *record) int {
		return cmp.Or(a.used.Compare(b.used), a.first.Compare(b.first), cmp.Compare(keyOf(a.image), keyOf(b.image)))
	})
	return out
}

// removable are those of unused that have been here for long enough to have been used, and that nobody has used just
// now: the next pod of the same kind may be on its way.
func (c *Collector) removable(now time.Time) []*record {
	return slices.DeleteFunc(c.unused(), func(r *record) bool {
		return now.Sub(r.first) < c.cfg.MinAge || now.Sub(r.used) < c.cfg.MinAge
	})
}

// tooOld are those of unused that nobody has used for the longest age, as far as this process knows.
func (c *Collector) tooOld(now time.Time) []*record {
	if c.cfg.MaxAge == 0 {
		return nil
	}
	return slices.DeleteFunc(c.unused(), func(r *record) bool {
		for _, t := range []time.Time{r.used, r.first, c.began} {
			if now.Sub(t) <= c.cfg.MaxAge {
				return true
			}
		}
		return false
	})
}
