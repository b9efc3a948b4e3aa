// Package credential gets the credentials of registries from plugins that speak kubelet's exec protocol,
// credentialprovider.kubelet.k8s.io/v1, so that the plugins of clouds and registries work as they are.
//
// A plugin is a program that is given the name of an image on its standard input and answers with credentials on its
// standard output. It is run only when an image must be pulled, and what it has answered is kept for as long as it
// says.
package credential

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	credentialv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

// Config of [Providers]. Path and BinDir are required.
type Config struct {
	Path   string // CredentialProviderConfig, or a directory of them
	BinDir string // programs of the providers
	Log    *slog.Logger
}

// Providers are the plugins. They are safe for concurrent use.
type Providers struct {
	all []*provider
	log *slog.Logger
}

type provider struct {
	name     string
	path     string
	args     []string
	env      []string // beyond the agent's own
	patterns []pattern
	keep     time.Duration
	log      *slog.Logger

	asking flights

	mu     sync.Mutex
	cached map[string]answer
}

// answer is what a plugin has said, until a moment.
type answer struct {
	auth  map[string]credentialv1.AuthConfig
	until time.Time
}

// New reads the configuration and checks that the programs are there.
func New(c Config) (*Providers, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	configs, err := load(c.Path)
	if err != nil {
		return nil, fmt.Errorf("read image credential providers: %w", err)
	}
	p := &Providers{log: c.Log}
	var errs []error
	for _, x := range configs {
		one := newProvider(c.BinDir, x)
		one.log = c.Log
		st, err := os.Stat(one.path)
		if err == nil && (st.IsDir() || st.Mode()&0o111 == 0) {
			err = fmt.Errorf("%s is not a program", one.path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("image credential provider %s: %w", x.Name, err))
		}
		p.all = append(p.all, one)
	}
	return p, errors.Join(errs...)
}

func newProvider(bin string, x kubeletv1.CredentialProvider) *provider {
	p := &provider{name: x.Name, path: filepath.Join(bin, x.Name), args: x.Args, keep: x.DefaultCacheDuration.Duration, cached: map[string]answer{}}
	for _, e := range x.Env {
		p.env = append(p.env, e.Name+"="+e.Value)
	}
	for _, m := range x.MatchImages {
		if pat, err := parsePattern(m); err == nil { // those that are not were refused
			p.patterns = append(p.patterns, pat)
		}
	}
	return p
}

// For returns what may be shown to the registry of an image, in the order in which it is to be tried. It is empty when
// no plugin has anything for it. A plugin that fails is logged and left out: the image may be public, or another's
// credentials may do.
func (p *Providers) For(ctx context.Context, ref string) ([]*runtimeapi.AuthConfig, error) {
	img, err := parseImage(ref)
	if err != nil {
		return nil, err
	}
	type candidate struct {
		key  string
		auth credentialv1.AuthConfig
	}
	var found []candidate
	for _, one := range p.all {
		if !slices.ContainsFunc(one.patterns, func(pat pattern) bool { return pat.match(img) }) {
			continue
		}
		auth, err := one.get(ctx, img)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			p.log.Warn("no credentials for image", "image", img.name(), "provider", one.name, "error", err)
			continue
		}
		for _, key := range slices.SortedFunc(maps.Keys(auth), before) {
			if pat, err := parsePattern(key); err != nil {
				p.log.Warn("credentials are for nothing", "provider", one.name, "error", err)
			} else if pat.match(img) {
				found = append(found, candidate{key, auth[key]})
			}
		}
	}
	// The special before the general over all plugins; for the same key the plugin named first.
	slices.SortStableFunc(found, func(a, b candidate) int { return before(a.key, b.key) })
	var out []*runtimeapi.AuthConfig
	for _, f := range found {
		out = append(out, &runtimeapi.AuthConfig{Username: f.auth.Username, Password: f.auth.Password})
	}
	return out, nil
}

// get answers from the cache, or by the plugin. Pulls at the same time of images with the same name ask once.
func (p *provider) get(ctx context.Context, img image) (map[string]credentialv1.AuthConfig, error) {
	if auth, ok := p.fromCache(img); ok {
		return auth, nil
	}
	return p.asking.do(ctx, img.name(), func(ctx context.Context) (map[string]credentialv1.AuthConfig, error) {
		if auth, ok := p.fromCache(img); ok {
			return auth, nil // it came while this one was on its way here
		}
		r, err := p.ask(ctx, img.name())
		if err != nil {
			return nil, err
		}
		return r.Auth, p.store(img, r)
	})
}

// The keys of the cache: those of registries cannot be an image's, which have a path, and "" is neither.
func (p *provider) fromCache(img image) (map[string]credentialv1.AuthConfig, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.cached, func(_ string, a answer) bool { return !now.Before(a.until) })
	for _, key := range []string{img.name(), img.registry, ""} {
		if a, ok := p.cached[key]; ok {
			return a.auth, true
		}
	}
	return nil, false
}

func (p *provider) store(img image, r *credentialv1.CredentialProviderResponse) error {
	var key string
	switch r.CacheKeyType {
	case credentialv1.ImagePluginCacheKeyType:
		key = img.name()
	case credentialv1.RegistryPluginCacheKeyType:
		key = img.registry
	case credentialv1.GlobalPluginCacheKeyType:
	default:
		return fmt.Errorf("answer of %s: cacheKeyType %q: must be Image, Registry or Global", p.name, r.CacheKeyType)
	}
	keep := p.keep
	if r.CacheDuration != nil {
		keep = r.CacheDuration.Duration
	}
	if keep <= 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cached[key] = answer{r.Auth, time.Now().Add(keep)}
	return nil
}
