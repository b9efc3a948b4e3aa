package token

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func jwt(payload string) string {
	return "h." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".s"
}

// TestAdopt: what a pod has been given before does while the server is away; what is no token, or has ended, does not.
func TestAdopt(t *testing.T) {
	away := errors.New("away")
	m := New(Config{Ask: func(context.Context, types.NamespacedName, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		return nil, away
	}})
	pod, want := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, Want{Seconds: 3600}
	if _, err := m.Token(t.Context(), pod, want); !errors.Is(err, away) {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", "a.b", "a.!.c", jwt("{}"), jwt(`{"exp":-1}`), jwt(`{"exp":"x"}`), jwt(fmt.Sprintf(`{"exp":%d}`, time.Now().Add(-time.Hour).Unix())),
		"h." + strings.Repeat("A", maxToken) + ".s",
	} {
		if got, ok := m.Adopt(pod, want, bad); ok {
			t.Errorf("%.40q was taken: %+v", bad, got)
		}
	}
	good := jwt(fmt.Sprintf(`{"exp":%d}`, time.Now().Add(time.Hour).Unix()))
	if got, ok := m.Adopt(pod, want, good); !ok || got.Text != good {
		t.Errorf("%+v, %t", got, ok)
	}
	if got, err := m.Token(t.Context(), pod, want); err != nil || got.Text != good {
		t.Errorf("%+v, %v", got, err)
	}
	m.Forget(pod.UID)
	if _, err := m.Token(t.Context(), pod, want); !errors.Is(err, away) {
		t.Errorf("after its pod: %v", err)
	}
}
