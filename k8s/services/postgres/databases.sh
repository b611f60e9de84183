# Runs once, on an empty volume: a role and its databases for each service; the others may not connect to them.
psql -v ON_ERROR_STOP=1 --no-psqlrc --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\getenv mlflow_password MLFLOW_PASSWORD
\getenv prefect_password PREFECT_PASSWORD
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE mlflow_auth OWNER mlflow;
CREATE DATABASE prefect OWNER prefect;
REVOKE CONNECT ON DATABASE mlflow, mlflow_auth, prefect FROM PUBLIC;
SQL
