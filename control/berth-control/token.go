package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-node/berth/control/etcd"
	"github.com/berth-node/berth/internal/commandline"
)

const (
	nodeGroup   = "system:bootstrappers:kubeadm:default-node-token"
	memberGroup = "system:bootstrappers:berth-control:" // and the id of the token
	keysField   = "bundle"
	endField    = "expiration"
	nodeTTL     = 24 * time.Hour
	// memberTTL is short: who has the command has the whole cluster.
	memberTTL = 2 * time.Hour
	// makingTTL is how long a token is good while what goes with it is made. Where the command is killed meanwhile
	// nobody knows the token, and it goes by itself, with what there is of the rest.
	makingTTL = 10 * time.Minute
)

// keysName is the object of what members share, and of the right to read it, for the holder of one token.
func keysName(id string) string { return "berth-control-member-" + id }

// tokenFlags are the flags of token create.
type tokenFlags struct {
	ttl          time.Duration
	about        string
	join, member bool
}

func newToken(d *data) *cobra.Command {
	c := &cobra.Command{Use: "token", Short: "Tokens by which nodes and members join the cluster"}
	f := &tokenFlags{}
	create := &cobra.Command{
		Use: "create", Short: "Make a bootstrap token and print it", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.ttl < 0 {
				return commandline.Usagef("--ttl %s: the token would be good for nothing; 0: for ever", f.ttl)
			}
			if f.member && !c.Flags().Changed("ttl") {
				f.ttl = memberTTL
			}
			out, err := createToken(c.Context(), *d, f)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), out)
			return err
		},
	}
	p := create.Flags()
	p.DurationVar(&f.ttl, "ttl", nodeTTL, "how long the token is good; 0: for ever. Of one for a member 2h, if not given")
	p.StringVar(&f.about, "description", "", "what the token is for")
	p.BoolVar(&f.join, "print-join-command", false, "print kubeadm's join command, with the hash of the authority's key")
	p.BoolVar(&f.member, "member", false, "print the command by which another machine becomes a member of the control plane; who reads it has the whole cluster")
	create.MarkFlagsMutuallyExclusive("print-join-command", "member")
	c.AddCommand(create, newTokenList(d))
	return c
}

func newTokenList(d *data) *cobra.Command {
	form := &commandline.Output{}
	c := &cobra.Command{
		Use: "list", Short: "List the tokens there are, without their secrets", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := admin(*d)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), joinTimeout)
			defer cancel()
			all, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
				FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken),
			})
			if err != nil {
				return fmt.Errorf("list tokens: %w", err)
			}
			shown := tokensShown(all.Items, time.Now())
			return form.Print(c.OutOrStdout(), shown, shown.table)
		},
	}
	form.AddFlag(c)
	return c
}

// tokensShown are the tokens of Secrets, which may be anybody's who can write there.
func tokensShown(all []corev1.Secret, now time.Time) (out shownTokens) {
	for i := range all {
		content := all[i].Data
		t := shownToken{ID: string(content["token-id"]), For: "node", About: string(content["description"])}
		t.Usable = t.ID != "" && len(content["token-secret"]) > 0 && string(content["usage-bootstrap-authentication"]) == "true"
		if strings.Contains(string(content["auth-extra-groups"]), memberGroup) {
			t.For = "member"
		}
		if text := string(content[endField]); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err == nil {
				t.Ends = &at
			}
			t.unread, t.Usable = err != nil, t.Usable && err == nil && now.Before(at)
		}
		out.Tokens = append(out.Tokens, t)
	}
	slices.SortFunc(out.Tokens, func(a, b shownToken) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// createToken makes a token, and returns what the user is to have of it.
func createToken(ctx context.Context, d data, f *tokenFlags) (string, error) {
	client, err := admin(d)
	if err != nil {
		return "", err
	}
	id, secret := letters(6), letters(16)
	if f.member {
		return createMemberToken(ctx, client, d, id, secret, f)
	}
	said := id + "." + secret
	if f.join {
		if said, err = joinCommand(d, "kubeadm join", said); err != nil {
			return "", err
		}
	}
	_, err = makeToken(ctx, client, tokenSecret(id, secret, nodeGroup, f.ttl, f.about))
	return said, err
}

// createMemberToken makes a token with what goes with it. It lasts as long as it is to when all of that is there.
func createMemberToken(ctx context.Context, client kubernetes.Interface, d data, id, secret string, f *tokenFlags) (string, error) {
	b, err := ownBundle(ctx, d)
	if err != nil {
		return "", err
	}
	k := newSealKey()
	command, err := joinCommand(d, "berth-control join", id+"."+secret)
	if err != nil {
		return "", err
	}
	first := makingTTL
	if f.ttl > 0 {
		first = min(first, f.ttl)
	}
	made, err := makeToken(ctx, client, tokenSecret(id, secret, memberGroup+id, first, f.about))
	if err != nil {
		return "", err
	}
	if err := give(ctx, client, made, id, k, b); err != nil {
		return "", err
	}
	if delete(made.Data, endField); f.ttl > 0 {
		made.Data[endField] = []byte(endOf(f.ttl))
	}
	if _, err := client.CoreV1().Secrets(made.Namespace).Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		return "", fmt.Errorf("have the token last: %w", err)
	}
	return command + " --certificate-key " + k.String(), nil
}

func makeToken(ctx context.Context, client kubernetes.Interface, token *corev1.Secret) (*corev1.Secret, error) {
	made, err := client.CoreV1().Secrets(token.Namespace).Create(ctx, token, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make token: %w", err)
	}
	return made, nil
}

// joinCommand is what joins this server's cluster with a token.
func joinCommand(d data, command, token string) (string, error) {
	at, err := readServing(d)
	if err != nil {
		return "", err
	}
	hash, err := authorityHash(d)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s --token %s --discovery-token-ca-cert-hash %s",
		command, net.JoinHostPort(at.Reach, strconv.Itoa(at.Port)), token, hash), nil
}

// ownBundle is what this member shares, with where etcd takes new members.
func ownBundle(ctx context.Context, d data) (bundle, error) {
	store, err := connectMember(ctx, d)
	if err != nil {
		return bundle{}, err
	}
	defer store.Close()
	if _, err := agreedMembers(ctx, store); err != nil {
		return bundle{}, fmt.Errorf("make token: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	urls, err := etcd.ClientURLs(ctx, store)
	if err != nil {
		return bundle{}, err
	}
	if len(urls) == 0 {
		return bundle{}, errors.New("make token: no member takes others: start this one with --peer-address")
	}
	b, err := d.bundle(urls)
	if err != nil {
		return b, err
	}
	return b, b.check()
}

// give puts what members share where the holder of a token, and nobody else who is not an administrator, may read it.
// All of it goes with the token.
func give(ctx context.Context, client kubernetes.Interface, token *corev1.Secret, id string, k sealKey, b bundle) error {
	sealed, err := k.seal(b, id)
	if err != nil {
		return fmt.Errorf("seal what members share: %w", err)
	}
	meta := metav1.ObjectMeta{
		Name: keysName(id), Namespace: metav1.NamespaceSystem,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: token.Name, UID: token.UID}},
	}
	_, err = client.CoreV1().Secrets(meta.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{keysField: sealed}}, metav1.CreateOptions{})
	if err == nil {
		_, err = client.RbacV1().Roles(meta.Namespace).Create(ctx, &rbacv1.Role{
			ObjectMeta: meta,
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{meta.Name}, Verbs: []string{"get"}}},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = client.RbacV1().RoleBindings(meta.Namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: memberGroup + id}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("give what members share: %w", err)
	}
	return nil
}

func tokenSecret(id, secret, group string, ttl time.Duration, about string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: metav1.NamespaceSystem},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": group,
		},
	}
	if about != "" {
		s.StringData["description"] = about
	}
	if ttl > 0 {
		s.StringData[endField] = endOf(ttl)
	}
	return s
}

func endOf(ttl time.Duration) string { return time.Now().Add(ttl).UTC().Format(time.RFC3339) }

// letters makes a part of a token, of those characters that one may have.
func letters(n int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, n)
	for random := make([]byte, 1); len(out) < n; {
		_, _ = rand.Read(random) // it never fails
		// As many of the 256 values for each character: what is beyond is thrown away.
		if b := int(random[0]); b < 256/len(alphabet)*len(alphabet) {
			out = append(out, alphabet[b%len(alphabet)])
		}
	}
	return string(out)
}
