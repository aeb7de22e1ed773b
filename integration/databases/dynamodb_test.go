package databases_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// An item is what a table of DynamoDB has for a key.
type item = map[string]types.AttributeValue

// A dynamo is a database in a table of DynamoDB whose partition key is id, a string.
type dynamo struct {
	*dynamodb.Client
	table *string
}

func (db dynamo) Get(ctx context.Context, key string) ([]byte, error) {
	found, err := db.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: db.table, Key: item{"id": &types.AttributeValueMemberS{Value: key}}, ConsistentRead: aws.Bool(true)})
	if err != nil || found.Item == nil {
		return nil, err
	}
	return found.Item["state"].(*types.AttributeValueMemberB).Value, nil
}

func (db dynamo) Delete(ctx context.Context, key string) error {
	_, err := db.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: db.table, Key: item{"id": &types.AttributeValueMemberS{Value: key}}})
	return err
}

func (db dynamo) CompareAndSwap(ctx context.Context, key string, old, state []byte, expires time.Time) (bool, error) {
	put := &dynamodb.PutItemInput{TableName: db.table, ConditionExpression: aws.String("attribute_not_exists(id)"),
		Item: item{"id": &types.AttributeValueMemberS{Value: key}, "state": &types.AttributeValueMemberB{Value: state}}}
	if old != nil {
		put.ConditionExpression = aws.String("#state = :old") // state is a reserved word
		put.ExpressionAttributeNames = map[string]string{"#state": "state"}
		put.ExpressionAttributeValues = item{":old": &types.AttributeValueMemberB{Value: old}}
	}
	if !expires.IsZero() { // the attribute of the table's time to live; a minute later, for clocks that differ
		at := strconv.FormatInt(expires.Unix()+61, 10)
		put.Item["expires"] = &types.AttributeValueMemberN{Value: at}
	}
	_, err := db.PutItem(ctx, put)
	if lost := new(types.ConditionalCheckFailedException); errors.As(err, &lost) {
		return false, nil
	}
	return err == nil, err
}

// TestDynamoDB runs storetest on what docs/databases.md shows, if the variable names a server.
func TestDynamoDB(t *testing.T) {
	url := os.Getenv("AWS_ENDPOINT_URL_DYNAMODB")
	if url == "" {
		t.Skip("AWS_ENDPOINT_URL_DYNAMODB names no server")
	}
	client := dynamodb.New(dynamodb.Options{
		BaseEndpoint: &url, Region: "eu-west-1", Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	})
	var tables atomic.Int64
	storetest.Run(t, storetest.Config{
		Database: func(t testing.TB, _ clock.Clock) ratelimit.Database {
			name := aws.String(fmt.Sprintf("limits-%d-%d", os.Getpid(), tables.Add(1)))
			_, err := client.CreateTable(t.Context(), &dynamodb.CreateTableInput{
				TableName: name, BillingMode: types.BillingModePayPerRequest,
				AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeS}},
				KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: types.KeyTypeHash}},
			})
			require.NoError(t, err)
			waiter := dynamodb.NewTableExistsWaiter(client, func(o *dynamodb.TableExistsWaiterOptions) { o.MinDelay = time.Millisecond })
			require.NoError(t, waiter.Wait(t.Context(), &dynamodb.DescribeTableInput{TableName: name}, time.Minute))
			return dynamo{client, name}
		},
		Steps: 50,
		Keys:  200,
	})
}
