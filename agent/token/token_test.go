package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/issued/issuedtest"
)

// server makes tokens as it is told to.
type server struct {
	mu     sync.Mutex
	made   int
	asked  []authenticationv1.TokenRequestSpec
	answer func(n int, r *authenticationv1.TokenRequest) error // may change the answer
	hangs  bool
}

func (s *server) ask(
	ctx context.Context, account types.NamespacedName, r *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	s.mu.Lock()
	s.made++
	n, hangs, answer := s.made, s.hangs, s.answer
	s.asked = append(s.asked, r.Spec)
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	out := r.DeepCopy()
	out.Status.Token = fmt.Sprintf("%s/%d", account, n)
	out.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(*r.Spec.ExpirationSeconds) * time.Second))
	if answer != nil {
		if err := answer(n, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{ServiceAccountName: "robot"},
	}
}

// world is a manager with its server, in time of its own.
type world struct {
	*Manager
	t       *testing.T
	s       *server
	renewed atomic.Int64
}

func in(t *testing.T, fn func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, s: &server{}}
		w.Manager = New(Config{Ask: w.s.ask, Renewed: func(types.UID) { w.renewed.Add(1) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		defer func() { cancel(); <-done }()
		fn(w)
	})
}

func (w *world) get(pod *corev1.Pod, want Want) Token {
	w.t.Helper()
	got, err := w.Token(w.t.Context(), pod, want)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

func (w *world) is(pod *corev1.Pod, want Want, text string) {
	w.t.Helper()
	if got := w.get(pod, want); got.Text != text {
		w.t.Errorf("the token is %q, want %q", got.Text, text)
	}
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestCached wants one token for each want of a pod, bound to it.
func TestCached(t *testing.T) {
	in(t, func(w *world) {
		p := podNamed("a")
		w.is(p, Want{Seconds: 3607}, "ns/robot/1")
		w.is(p, Want{Seconds: 3607}, "ns/robot/1")
		w.is(p, Want{Audience: "vault", Seconds: 3607}, "ns/robot/2")
		w.is(p, Want{Seconds: 600}, "ns/robot/3")
		w.is(podNamed("b"), Want{Seconds: 3607}, "ns/robot/4")
		again := podNamed("a")
		again.UID = "another"
		w.is(again, Want{Seconds: 3607}, "ns/robot/5")
		first, second := w.s.asked[0], w.s.asked[1]
		if b := first.BoundObjectRef; b == nil || *b != (authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "a", UID: "uid-a"}) {
			t.Errorf("bound to %+v", b)
		}
		if len(first.Audiences) != 0 || len(second.Audiences) != 1 || second.Audiences[0] != "vault" || *first.ExpirationSeconds != 3607 {
			t.Errorf("asked %+v and %+v", first, second)
		}
		w.Forget(p.UID)
		w.is(p, Want{Seconds: 3607}, "ns/robot/6")
	})
}

// TestRenewed wants a token to be another one before four fifths of its life are over, or a day, and its pod to hear.
func TestRenewed(t *testing.T) {
	in(t, func(w *world) {
		p, day, quiet := podNamed("a"), podNamed("b"), podNamed("c")
		w.is(p, Want{Seconds: 3600}, "ns/robot/1")
		w.is(day, Want{Seconds: 30 * 24 * 3600}, "ns/robot/2")
		w.is(quiet, Want{Seconds: 3600, Once: true}, "ns/robot/3")
		pass(43 * time.Minute) // nine tenths of four fifths are 43.2
		if w.s.count() != 3 {
			t.Error("renewed too soon")
		}
		pass(5 * time.Minute)
		if w.renewed.Load() != 1 {
			t.Errorf("%d were told", w.renewed.Load())
		}
		w.is(p, Want{Seconds: 3600}, "ns/robot/4")
		w.is(quiet, Want{Seconds: 3600, Once: true}, "ns/robot/5") // when it is asked for
		w.Forget(p.UID)
		w.Forget(quiet.UID)
		pass(20 * time.Hour)
		if w.s.count() != 5 {
			t.Errorf("%d requests", w.s.count())
		}
		pass(4 * time.Hour)
		if w.s.count() != 6 || w.renewed.Load() != 2 {
			t.Errorf("%d requests, %d told", w.s.count(), w.renewed.Load())
		}
	})
}

// TestServerAway wants the old token as long as it is good, few tries meanwhile, and a new one when the server is back.
func TestServerAway(t *testing.T) {
	in(t, func(w *world) {
		p, want := podNamed("a"), Want{Seconds: 3600}
		w.is(p, want, "ns/robot/1")
		w.s.set(func() { w.s.answer = func(int, *authenticationv1.TokenRequest) error { return errors.New("away") } })
		pass(59 * time.Minute)
		w.is(p, want, "ns/robot/1")
		if n := w.s.count(); n < 4 || n > 10 {
			t.Errorf("%d tries", n)
		}
		pass(time.Hour)
		if _, err := w.Token(w.t.Context(), p, want); err == nil || !strings.Contains(err.Error(), "away") {
			t.Errorf("with one that has expired: %v", err)
		}
		before := w.s.count()
		w.s.set(func() { w.s.answer = nil })
		pass(8 * time.Minute)
		if w.renewed.Load() != 1 || w.s.count() != before+1 {
			t.Errorf("%d told, %d requests", w.renewed.Load(), w.s.count()-before)
		}
	})
}

// TestFirstFails wants an error to be nobody else's than who has asked then.
func TestFirstFails(t *testing.T) {
	in(t, func(w *world) {
		refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "robot", errors.New("no"))
		w.s.answer = func(n int, _ *authenticationv1.TokenRequest) error {
			if n == 1 {
				return refusal
			}
			return nil
		}
		p := podNamed("a")
		if _, err := w.Token(w.t.Context(), p, Want{Seconds: 600}); !apierrors.IsForbidden(errors.Unwrap(err)) || len(w.pods) != 0 {
			t.Errorf("%v, %v", err, w.pods)
		}
		w.is(p, Want{Seconds: 600}, "ns/robot/2")
	})
}

// TestHangs wants nobody to wait for a server that does not answer longer than there is time, and no pod for another.
func TestHangs(t *testing.T) {
	in(t, func(w *world) {
		w.s.hangs = true
		p, want := podNamed("a"), Want{Seconds: 600}
		first, cancel := context.WithCancel(w.t.Context())
		var failed, second error
		var wait sync.WaitGroup
		wait.Go(func() { _, failed = w.Token(first, p, want) })
		synctest.Wait()
		wait.Go(func() { _, second = w.Token(w.t.Context(), p, want) })
		synctest.Wait()
		if w.s.count() != 1 {
			t.Errorf("asked %d times at once", w.s.count())
		}
		cancel() // the second one asks itself
		synctest.Wait()
		if w.s.count() != 2 {
			t.Errorf("asked %d times", w.s.count())
		}
		wait.Wait()
		if !errors.Is(failed, context.Canceled) || !errors.Is(second, context.DeadlineExceeded) {
			t.Errorf("%v; %v", failed, second)
		}
	})
}

// TestHangsWhileRenewing wants a pod to keep its token without waiting, and one that goes meanwhile to be forgotten.
func TestHangsWhileRenewing(t *testing.T) {
	in(t, func(w *world) {
		want := Want{Seconds: 3600}
		for i := range 50 {
			w.get(podNamed(fmt.Sprint(i)), want)
		}
		w.s.set(func() { w.s.hangs = true })
		pass(45 * time.Minute)
		began := time.Now()
		for i := range 50 {
			w.get(podNamed(fmt.Sprint(i)), want)
		}
		if time.Since(began) != 0 {
			t.Errorf("they waited %s", time.Since(began))
		}
		for i := range 50 {
			w.Forget(podNamed(fmt.Sprint(i)).UID)
		}
		pass(requestTimeout)
		n := w.s.count()
		pass(time.Hour)
		if w.s.count() > n+parallel {
			t.Errorf("%d requests for pods that are gone", w.s.count()-n)
		}
	})
}

// TestHostileAnswers wants no answer to be taken that is none, and none to have the node ask all the time.
func TestHostileAnswers(t *testing.T) {
	in(t, func(w *world) {
		p, want := podNamed("a"), Want{Seconds: 3600}
		seconds := func(n int64) func(int, *authenticationv1.TokenRequest) error {
			return func(_ int, r *authenticationv1.TokenRequest) error {
				r.Spec.ExpirationSeconds = &n
				return nil
			}
		}
		for name, c := range map[string]struct {
			answer func(int, *authenticationv1.TokenRequest) error
			err    string
		}{
			"none": {func(_ int, r *authenticationv1.TokenRequest) error { r.Status.Token = ""; return nil }, "the answer has none"},
			"of 100 MB": {func(_ int, r *authenticationv1.TokenRequest) error {
				r.Status.Token = strings.Repeat("a", 100<<20)
				return nil
			}, "104857600 bytes"},
			"an error": {func(int, *authenticationv1.TokenRequest) error { return errors.New("boom") }, "boom"},
		} {
			w.s.set(func() { w.s.answer = c.answer })
			if _, err := w.Token(w.t.Context(), p, want); err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		// The server's clock is years behind: the token is as good as any other.
		w.s.set(func() {
			w.s.answer = func(_ int, r *authenticationv1.TokenRequest) error {
				r.Status.ExpirationTimestamp = metav1.NewTime(time.Unix(1, 0))
				return nil
			}
		})
		got, n := w.get(p, want), w.s.count()
		if pass(30 * time.Minute); w.s.count() != n || got.Expires.Unix() != 1 {
			t.Errorf("%d requests, expires %s", w.s.count()-n, got.Expires)
		}
		for _, life := range []int64{1, 0, -5, 1 << 62} {
			w.Forget(p.UID)
			w.s.set(func() { w.s.answer = seconds(life) })
			w.get(p, want)
			n := w.s.count()
			pass(10 * time.Minute)
			if more := w.s.count() - n; more > 10 {
				t.Errorf("a life of %d s: %d requests in 10 min", life, more)
			}
		}
	})
}

// TestRetryAfter wants a server to be left alone for as long as it says, and no longer than the bound.
func TestRetryAfter(t *testing.T) {
	busy := apierrors.NewTooManyRequests("later", 120)
	for range 100 {
		if p := pause(busy, 1); p < 2*time.Minute || p > 3*time.Minute {
			t.Errorf("%s", p)
		}
		if p := pause(apierrors.NewTooManyRequests("later", 1<<30), 99); p < pauseMax || p > pauseMax*3/2 {
			t.Errorf("%s", p)
		}
		if a := renewAfter(time.Hour); a < 43*time.Minute || a > 48*time.Minute {
			t.Errorf("%s", a)
		}
		if a := renewAfter(maxLife); a < oldest*9/10 || a > oldest {
			t.Errorf("%s", a)
		}
	}
}

// TestKept: after a boot without the server a pod has the token that it had, also one that has ended, which is said
// once; when the server is back it has another one at once. What the server refuses it does not get.
func TestKept(t *testing.T) {
	var d issuedtest.Store
	p, want, short := podNamed("a"), Want{Seconds: 3600}, Want{Audience: "vault", Seconds: 600}
	away := func(int, *authenticationv1.TokenRequest) error { return errors.New("away") }
	in(t, func(w *world) {
		w.cfg.Keep = &d
		w.is(p, want, "ns/robot/1")
		w.is(p, short, "ns/robot/2")
	})
	in(t, func(w *world) { // the time begins anew, so that it is good still
		w.cfg.Keep = &d
		w.s.set(func() { w.s.answer = away })
		w.is(p, want, "ns/robot/1")
		if _, err := w.Token(w.t.Context(), podNamed("b"), want); err == nil {
			t.Error("a pod has the token of another")
		}
	})
	in(t, func(w *world) {
		w.cfg.Keep = &d
		var log issuedtest.Log
		w.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		pass(time.Hour * 2)
		w.s.set(func() { w.s.answer = away })
		w.is(p, want, "ns/robot/1")
		w.is(p, short, "ns/robot/2")
		w.is(p, want, "ns/robot/1")
		if n := strings.Count(log.String(), "which has ended"); n != 2 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
		pass(time.Hour)
		before := w.s.count()
		w.s.set(func() { w.s.answer = nil })
		w.Again()
		synctest.Wait()
		if w.s.count() != before+2 || w.renewed.Load() != 2 {
			t.Errorf("%d requests when the server was back, %d told", w.s.count()-before, w.renewed.Load())
		}
		w.is(p, want, string(w.get(p, want).Text))
		if left := time.Until(w.get(p, want).Expires); left < 50*time.Minute {
			t.Errorf("the token is good for %s", left)
		}
	})
	in(t, func(w *world) { // it has hung since
		w.cfg.Keep = &d
		w.s.hangs = true
		began := time.Now()
		w.get(p, want)
		if waited := time.Since(began); waited > keptTimeout {
			t.Errorf("the pod waited %s", waited)
		}
	})
	in(t, func(w *world) {
		w.cfg.Keep = &d
		w.s.answer = func(int, *authenticationv1.TokenRequest) error {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, "robot")
		}
		if _, err := w.Token(w.t.Context(), p, want); err == nil {
			t.Error("the pod has a token of an account that is gone")
		}
	})
}
